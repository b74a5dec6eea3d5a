"""Logprobs of prompts and answers in float32 are those of transformers: alone, batched, with a warm prefix cache, in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from prompts import fidelity_prompts
from transformers import AutoModelForCausalLM

from ringpost.ipc.messages.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from ringpost.ipc.messages.outputs import TokenLogprobs
from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.model_runner.checkpoint.resolve import resolve_checkpoint
from ringpost.model_runner.runner import ModelRunner
from ringpost.sched.scheduler import Scheduler

FULL = (8, 12)  # prompts, tokens of each answer
REDUCED = (3, 4)
SIZES = [pytest.param(REDUCED, id="reduced"), pytest.param(FULL, id="full", marks=pytest.mark.long)]
MAX_LEN = 512
NUM_BLOCKS = 256
TOP = 5
CLOSE = 1e-3


@dataclass
class Answer:
    """What a request was told."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    cached: int = 0


@pytest.fixture(scope="module")
def reference(smollm2: str) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    assert isinstance(model, torch.nn.Module)
    return model.eval()


@pytest.fixture(scope="module")
def runner(smollm2: str) -> ModelRunner:
    model = ModelConfig(dtype="float32", max_model_len=MAX_LEN)
    config = EngineConfig(model=model, parallel=ParallelConfig(num_threads=1), checkpoint=resolve_checkpoint(model))
    made = ModelRunner(config=config)
    made.init_cache(NUM_BLOCKS)
    return made


def new_scheduler(runner: ModelRunner, budget: int = 2048) -> Scheduler:
    """With an empty prefix cache."""
    runner.reset()
    options = SchedulerConfig(max_num_batched_tokens=budget)
    return Scheduler(options, CacheConfig(block_size=16), num_blocks=NUM_BLOCKS, max_model_len=MAX_LEN)


def answers(runner: ModelRunner, scheduler: Scheduler, prompts: Sequence[list[int]], params: SamplingParams) -> list[Answer]:
    told = [Answer() for _ in prompts]
    for number, prompt in enumerate(prompts):
        scheduler.add(AddRequest(number, str(number), prompt, params, 0.0))
    while scheduler.has_work:
        plan = scheduler.schedule()
        assert plan is not None
        result = runner.execute(plan)
        assert result.failures == []
        for delta in scheduler.update(result).deltas:
            answer = told[delta.request]
            answer.tokens += delta.tokens
            answer.logprobs += delta.logprobs
            answer.cached = max(answer.cached, delta.cached_tokens)
            if delta.prompt_logprobs:
                assert delta.prompt_start == len(answer.prompt_logprobs) + 1
                answer.prompt_logprobs += delta.prompt_logprobs
    return told


def check(entry: TokenLogprobs, expected: torch.Tensor, token: int) -> None:
    """An entry tells of a token what the reference's logprobs [V] say, but for ties."""
    assert entry.logprob == pytest.approx(float(expected[token]), abs=CLOSE)
    low, high = (int((expected > expected[token] + margin).sum()) + 1 for margin in (CLOSE, -CLOSE))
    assert low <= entry.rank <= high
    ids, values = np.frombuffer(entry.top_ids, "<i4"), np.frombuffer(entry.top_logprobs, "<f4")
    assert len({*ids.tolist()}) == TOP
    np.testing.assert_allclose(values, expected.topk(TOP).values, atol=CLOSE)
    np.testing.assert_allclose(values, expected[torch.from_numpy(ids.astype(np.int64))], atol=CLOSE)


def check_answer(model: torch.nn.Module, prompt: list[int], answer: Answer, length: int, *, with_prompt: bool) -> None:
    with torch.inference_mode():
        expected = model(torch.tensor([[*prompt, *answer.tokens]])).logits[0].float().log_softmax(-1)
    assert len(answer.tokens) == len(answer.logprobs) == length
    for index, entry in enumerate(answer.logprobs):
        check(entry, expected[len(prompt) + index - 1], answer.tokens[index])
    assert len(answer.prompt_logprobs) == (len(prompt) - 1 if with_prompt else 0)
    for index, entry in enumerate(answer.prompt_logprobs):
        check(entry, expected[index], prompt[index + 1])


@pytest.mark.parametrize("size", SIZES)
def test_cold_and_warm(runner: ModelRunner, reference: torch.nn.Module, size: tuple[int, int]) -> None:
    """The second time, only who asks for nothing of the prompt reads the prefix cache."""
    count, length = size
    prompts, scheduler = fidelity_prompts(count), new_scheduler(runner)
    whole = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, logprobs=TOP, prompt_logprobs=TOP)
    answer_only = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, logprobs=TOP)
    for params, reads in ((whole, False), (whole, False), (answer_only, True)):
        found = answers(runner, scheduler, prompts, params)
        assert [answer.cached > 0 for answer in found] == [reads and len(prompt) > 16 for prompt in prompts]
        for prompt, answer in zip(prompts, found, strict=True):
            check_answer(reference, prompt, answer, length, with_prompt=params.prompt_logprobs is not None)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("budget", [16, pytest.param(64, marks=pytest.mark.long)])
@pytest.mark.long
def test_in_chunks(runner: ModelRunner, reference: torch.nn.Module, size: tuple[int, int], budget: int) -> None:
    count, length = size
    params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, logprobs=TOP, prompt_logprobs=TOP)
    prompts = fidelity_prompts(count)
    for prompt, answer in zip(prompts, answers(runner, new_scheduler(runner, budget), prompts, params), strict=True):
        check_answer(reference, prompt, answer, length, with_prompt=True)
