"""Logprobs of answers and prompts, against transformers and torch's log_softmax; copies of blocks; requests without a token."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_checkpoint import write_tiny_llama
from tiny_runner import BLOCKS_PER_ROW, GREEDY, MAX_LEN, ROWS, make_runner, new_row, plan, prefill_and_decode, prompt
from transformers import LlamaConfig, LlamaForCausalLM

from ringpost.ipc.messages.outputs import TokenLogprobs
from ringpost.ipc.messages.plans import NewRow, StepPlan
from ringpost.ipc.messages.results import PromptLogprobs
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.model_runner import runner as runner_module
from ringpost.model_runner.logprobs import OFF, logprobs_bytes, token_logprobs
from ringpost.model_runner.outcome import FAILED_TOKEN
from ringpost.model_runner.runner import ModelRunner


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(directory: Path) -> LlamaForCausalLM:
    config = LlamaConfig.from_pretrained(directory)
    return LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, config=config).eval()


@pytest.fixture
def runner(directory: Path) -> ModelRunner:
    return make_runner(directory)


def reference(model: LlamaForCausalLM, tokens: Sequence[int]) -> torch.Tensor:
    """log_softmax at every position [T, V]."""
    with torch.inference_mode():
        logprobs: torch.Tensor = model(torch.tensor([[*tokens]])).logits[0].log_softmax(-1)
    return logprobs


def check_entry(entry: TokenLogprobs, expected: torch.Tensor, token: int, count: int) -> None:
    """An entry tells of `token` what the logprobs [V] say, and of the `count` likeliest."""
    assert entry.logprob == pytest.approx(float(expected[token]), abs=1e-4)
    assert entry.rank == int((expected > expected[token]).sum()) + 1
    ids, values = np.frombuffer(entry.top_ids, "<i4"), np.frombuffer(entry.top_logprobs, "<f4")
    if count == -1:
        assert ids.size == 0
        np.testing.assert_allclose(values, expected, atol=1e-4)
    else:
        assert ids.tolist() == expected.topk(count).indices.tolist()
        np.testing.assert_allclose(values, expected.topk(count).values, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 5), (7, 300), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_entries_equal_log_softmax(shape: tuple[int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    # Permutations of small integers: no two tokens tie, in either dtype.
    logits = torch.stack([torch.randperm(shape[1], generator=generator) for _ in range(shape[0])]).float() - shape[1] // 2
    logits[0, 0] = float("-inf")
    logits = logits.to(dtype)
    tokens = torch.arange(shape[0]) % shape[1]
    counts = np.resize([0, 3, -1, 1, 10**9], shape[0])
    entries, numbers = token_logprobs(logits, tokens, counts)
    assert numbers.all() == (shape[1] > 1), "a vocabulary of nothing but minus infinity"
    expected = logits.float().log_softmax(-1)
    for row, (entry, count) in enumerate(zip(entries, counts.tolist(), strict=True)):
        if numbers[row]:
            check_entry(entry, expected[row], int(tokens[row]), min(count, shape[1]))


def test_what_entries_take() -> None:
    assert logprobs_bytes(np.array([OFF, 0, 5, -1, 10**9]), 1000).tolist() == [0, 40, 80, 4040, 8040]


@pytest.mark.parametrize("count", [0, 1, 5, -1, 10**6])
@pytest.mark.parametrize(
    "style",
    [
        {"temperature": 0},
        {"temperature": 1.7, "seed": 5},
        {"temperature": 0, "logit_bias": {9: 100}, "repetition_penalty": 2.0},
    ],
)
def test_logprobs_of_an_answer_are_those_of_the_raw_logits(
    runner: ModelRunner, model: LlamaForCausalLM, count: int, style: dict[str, Any]
) -> None:
    tokens, other = prompt(20), prompt(31, 2)
    params = SamplingParams(logprobs=count, **style)
    steps = [plan([(0, 0, 31), (1, 0, 20)], [0, 1], [new_row(0, other), new_row(1, tokens, params)])]
    steps += [plan([(1, 20 + i, 1), (0, 31 + i, 1)], [0, 1]) for i in range(4)]
    for number, step in enumerate(steps):
        result = runner.execute(step)
        mine = step.rows.index(1)
        assert result.logprobs[1 - mine] is None
        entry = result.logprobs[mine]
        assert entry is not None
        check_entry(entry, reference(model, tokens)[-1], result.tokens[mine], min(count, runner._shape.vocab_size))
        tokens = [*tokens, result.tokens[mine]]
        assert number < 4 or len(tokens) == 25


def test_nobody_asks_for_logprobs(runner: ModelRunner) -> None:
    result = runner.execute(plan([(0, 0, 9)], [0], [new_row(0, prompt(9))]))
    assert (result.logprobs, result.prompt_logprobs) == ([], [])


def check_prompt(
    found: list[PromptLogprobs], expected: torch.Tensor, tokens: list[int], index: int, count: int, first: int
) -> int:
    """What one step tells of a prompt continues at `first`; returns where the next one has to."""
    mine = [one for one in found if one.index == index]
    for one in mine:
        assert one.start == first
        for entry in one.logprobs:
            check_entry(entry, expected[first - 1], tokens[first], count)
            first += 1
    return first


@pytest.mark.parametrize("count", [0, 3, -1])
@pytest.mark.parametrize("budget", [1, 7, 16, MAX_LEN])
@pytest.mark.parametrize("slice_size", [3, 512])
def test_prompt_logprobs(
    runner: ModelRunner, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, count: int, budget: int, slice_size: int
) -> None:
    """In chunks, among others that ask for none. The last position tells of the answer, not of a prompt token."""
    monkeypatch.setattr(runner_module, "SLICE", slice_size)
    tokens, decoding = prompt(40), prompt(12, 3)
    runner.execute(plan([(2, 0, 12)], [0], [new_row(2, decoding)]))
    new = [new_row(0, tokens, SamplingParams(temperature=0, prompt_logprobs=count, logprobs=1)), new_row(1, prompt(MAX_LEN, 8))]
    expected, start, first, step = reference(model, tokens), 0, 1, 0
    while start < 40:
        size = min(budget, 40 - start)
        last = start + size == 40
        # Row 1 is in the midst of its prompt, and row 2 decodes.
        work = [(1, 2 * step, 2), (0, start, size), (2, 12 + step, 1)]
        result = runner.execute(plan(work, [1, 2] if last else [2], new))
        first = check_prompt(result.prompt_logprobs, expected, tokens, 1, count, first)
        assert first == min(start + size, 39) + 1
        new, start, step = [], start + size, step + 1
        assert (len(result.prompt_logprobs) == 1) == (size > last)
        assert result.logprobs[:1] != [None] if last else result.logprobs == []
    assert first == 40
    assert result.tokens[0] == int(expected[-1].argmax())


def test_prompt_logprobs_come_again_when_the_prompt_is_computed_again(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    tokens = prompt(20)
    output = prefill_and_decode(runner, [new_row(0, tokens)], [20], 4)[0]
    row = NewRow(1, 7, tokens + output, 20, new_row(1, []).blocks, SamplingParams(temperature=0, prompt_logprobs=2))
    result = runner.execute(plan([(1, 0, 25)], [0], [row]))
    assert check_prompt(result.prompt_logprobs, reference(model, tokens), tokens, 0, 2, 1) == 20


def test_logprobs_of_a_step_that_is_computed_again_request_by_request(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    tokens, bad = prompt(20), [5, 10**6, 7]  # a token outside the vocabulary
    asking = SamplingParams(temperature=0, logprobs=2, prompt_logprobs=2)
    rows = [new_row(1, bad, asking), new_row(0, tokens, asking), new_row(2, tokens)]
    result = runner.execute(plan([(1, 0, 3), (0, 0, 20), (2, 0, 20)], [0, 1, 2], rows))
    expected = reference(model, tokens)
    assert [failure.index for failure in result.failures] == [0]
    assert (result.logprobs[0], result.logprobs[2]) == (None, None)
    assert result.logprobs[1] is not None
    check_entry(result.logprobs[1], expected[-1], result.tokens[1], 2)
    assert check_prompt(result.prompt_logprobs, expected, tokens, 1, 2, 1) == 20
    assert {one.index for one in result.prompt_logprobs} == {1}


def test_a_prompt_position_that_is_no_number_fails_its_request(
    runner: ModelRunner, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_logits = runner._model.compute_logits

    def poison(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute_logits(hidden)
        if len(hidden) == 11:
            logits[5, 17] = float("nan")
        return logits

    monkeypatch.setattr(runner._model, "compute_logits", poison)
    asking = SamplingParams(temperature=0, prompt_logprobs=1)
    result = runner.execute(
        plan([(0, 0, 12), (1, 0, 20)], [0, 1], [new_row(0, prompt(12), asking), new_row(1, prompt(20), asking)])
    )
    assert [(failure.index, failure.kind) for failure in result.failures] == [(0, "NonFiniteLogitsError")]
    assert [one.index for one in result.prompt_logprobs] == [1]
    assert result.tokens[0] == FAILED_TOKEN


def test_logprobs_that_no_result_could_hold_fail_their_request(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "MAX_BYTES", 20_000)
    everything, few = (SamplingParams(temperature=0, prompt_logprobs=count) for count in (-1, 1))
    rows = [new_row(0, prompt(30), everything), new_row(1, prompt(30)), new_row(2, prompt(9), few)]
    result = runner.execute(plan([(0, 0, 30), (1, 0, 30), (2, 0, 9)], [0, 1, 2], rows))
    assert [(failure.index, failure.kind) for failure in result.failures] == [(0, "TooManyLogprobs")]
    assert "prompt_logprobs" in result.failures[0].message
    assert min(result.tokens[1:]) >= 0
    assert len(result.prompt_logprobs[0].logprobs) == 8


def test_of_equal_requests_the_newcomers_fail_for_too_many_logprobs(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = SamplingParams(temperature=0, logprobs=-1)
    monkeypatch.setattr(runner_module, "MAX_BYTES", 2 * int(logprobs_bytes(np.array([-1]), runner._shape.vocab_size)[0]))
    runner.execute(plan([(2, 0, 4)], [0], [new_row(2, prompt(4), everything)]))
    newcomers = [new_row(row, prompt(4, row), everything) for row in (0, 1)]
    result = runner.execute(plan([(0, 0, 4), (1, 0, 4), (2, 4, 1)], [0, 1, 2], newcomers))
    assert [(failure.index, failure.kind) for failure in result.failures] == [(1, "TooManyLogprobs")]


@pytest.mark.parametrize("failing", [False, True])
def test_copied_blocks_hold_the_same_keys_and_values(runner: ModelRunner, failing: bool) -> None:
    """A prompt's last block is copied, also in a step that is computed again request by request; its own goes on meanwhile."""
    tokens = prompt(20)
    params = [SamplingParams(seed=seed, logprobs=0) for seed in (3, 4)]
    alone = [prefill_and_decode(runner, [new_row(0, tokens, one)], [20], 12)[0] for one in params]
    runner.reset()
    leader = new_row(0, tokens, params[0])
    produced = [runner.execute(plan([(0, 0, 20)], [0], [leader])).tokens, []]
    full, last = leader.blocks[:2]
    copy = new_row(1, []).blocks[1]
    sibling = NewRow(1, 1, tokens, 20, [full, copy, *new_row(1, []).blocks[2:]], params[1])
    # Blocks are copied in order: first to another place, and from there.
    copies = [(last, ROWS * BLOCKS_PER_ROW - 1), (ROWS * BLOCKS_PER_ROW - 1, copy)]
    work, new, sample = [(0, 20, 1), (1, 19, 1)], [sibling], [0, 1]
    if failing:
        work, new = [*work, (2, 0, 2)], [*new, new_row(2, [5, 10**6])]
        sample.append(2)
    result = runner.execute(plan(work, sample, new, copies=copies))
    assert [failure.index for failure in result.failures] == ([2] if failing else [])
    for step in range(1, 13):
        for answer, token in zip(produced, result.tokens, strict=False):
            answer.append(token)
        result = runner.execute(plan([(0, 20 + step, 1), (1, 19 + step, 1)], [0, 1]))
    assert [answer[:12] for answer in produced] == [answer[:12] for answer in alone]


def test_a_copy_of_a_block_that_there_is_not(runner: ModelRunner) -> None:
    with pytest.raises(ValueError, match="cannot copy block 3 to 24: the KV cache holds 24"):
        runner.execute(StepPlan(0, [], [], [], [], [], [], copies=[(3, 24)]))


def test_no_token_left_fails_its_request_alone(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    tokens = prompt(20)
    params = SamplingParams(temperature=0, allowed_token_ids=[7], bad_words_token_ids=[[7, 7]], logprobs=1)
    rows = [new_row(0, prompt(9), params), new_row(1, tokens, GREEDY)]
    assert runner.execute(plan([(0, 0, 9), (1, 0, 20)], [0, 1], rows)).tokens[0] == 7
    result = runner.execute(plan([(0, 9, 1), (1, 20, 1)], [0, 1]))
    assert [(failure.index, failure.kind) for failure in result.failures] == [(0, "NoTokenLeft")]
    for field in ("allowed_token_ids", "bad_words", "min_tokens"):
        assert field in result.failures[0].message
    assert result.tokens[0] == FAILED_TOKEN
    assert result.logprobs == []
    expected = int(reference(model, [*tokens, int(reference(model, tokens)[-1].argmax())])[-1].argmax())
    assert result.tokens[1] == expected
    assert [failure.kind for failure in runner.execute(plan([(0, 10, 1), (1, 21, 1)], [0, 1])).failures] == ["RowFailed"]


def test_a_seed_gives_the_same_alone_and_among_32(directory: Path) -> None:
    runner = make_runner(directory, rows=32)
    styles: list[dict[str, Any]] = [{}, {"top_k": 9}, {"top_p": 0.8}, {"min_p": 0.05}, {"frequency_penalty": 1, "logprobs": 3}]
    rows = [
        new_row(row, prompt(5 + row, row), SamplingParams(seed=row, temperature=0.9, **styles[row % 5])) for row in range(32)
    ]
    together = prefill_and_decode(runner, rows, [5 + row for row in range(32)], 8)
    for row in range(0, 32, 3):
        runner.reset()
        assert prefill_and_decode(runner, [rows[row]], [5 + row], 8) == [together[row]]
