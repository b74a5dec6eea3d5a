"""ModelRunner against transformers' Llama on a tiny random checkpoint, in float32."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tiny_checkpoint import EOS_TOKEN_ID as EOS
from tiny_checkpoint import write_tiny_llama
from tiny_runner import (
    BLOCK_SIZE,
    BLOCKS_PER_ROW,
    GREEDY,
    MAX_LEN,
    ROWS,
    make_runner,
    new_row,
    plan,
    prefill,
    prefill_and_decode,
    prompt,
)
from transformers import LlamaConfig, LlamaForCausalLM

from ringpost.ipc.messages.plans import NewRow, RowTokens, StepPlan
from ringpost.ipc.messages.results import StepResult
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.model_runner.choice import Chooser
from ringpost.model_runner.outcome import FAILED_TOKEN
from ringpost.model_runner.runner import ModelRunner
from ringpost.model_runner.sampler import Sampler


def reference_model(directory: Path) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, config=LlamaConfig.from_pretrained(directory))
    return model.eval()


def greedy_tokens(model: LlamaForCausalLM, tokens: list[int], count: int) -> list[int]:
    with torch.inference_mode():
        for _ in range(count):
            tokens = [*tokens, int(model(torch.tensor([tokens])).logits[0, -1].argmax())]
    return tokens[-count:]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(directory: Path) -> LlamaForCausalLM:
    return reference_model(directory)


@pytest.fixture
def runner(directory: Path) -> ModelRunner:
    return make_runner(directory)


@pytest.fixture
def seen_logits(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The logits of every step, in order."""
    seen: list[torch.Tensor] = []
    sample = Sampler.sample

    def keep(self: Sampler, logits: torch.Tensor, batch: Any) -> torch.Tensor:
        seen.append(logits.clone())
        return sample(self, logits, batch)

    monkeypatch.setattr(Sampler, "sample", keep)
    monkeypatch.setattr(Chooser, "is_plain", lambda *_: False)
    return seen


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33, 50])
@pytest.mark.parametrize("budget", [3, 16, MAX_LEN])
def test_prefill_logits_match(
    runner: ModelRunner, model: LlamaForCausalLM, seen_logits: list[torch.Tensor], length: int, budget: int
) -> None:
    tokens = prompt(length)
    result = prefill(runner, tokens, budget)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0, -1]
    torch.testing.assert_close(seen_logits[-1][0], expected, rtol=1e-4, atol=1e-4)
    assert result.tokens == [int(expected.argmax())]


@pytest.mark.parametrize("length", [15, 16, 17])
def test_greedy_decode_matches_across_block_boundaries(runner: ModelRunner, model: LlamaForCausalLM, length: int) -> None:
    tokens = prompt(length)
    produced = prefill(runner, tokens, MAX_LEN).tokens
    for step in range(20):
        produced += runner.execute(plan([(0, length + step, 1)], [0])).tokens
    assert produced == greedy_tokens(model, tokens, 21)


def test_mixed_batch_equals_requests_alone(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    prompts = [prompt(9, 1), prompt(31, 2), prompt(40, 3)]
    expected = [greedy_tokens(model, tokens, 6) for tokens in prompts]
    produced: list[list[int]] = [[], [], []]
    # Row 1 decodes while row 2 is read in two chunks and row 0 in one; the order in the plan is not that of rows.
    steps = [
        ([(1, 0, 31)], [0], [1], [new_row(1, prompts[1])]),
        ([(2, 0, 25), (1, 31, 1), (0, 0, 9)], [2, 1], [0, 1], [new_row(2, prompts[2]), new_row(0, prompts[0])]),
        ([(1, 32, 1), (2, 25, 15), (0, 9, 1)], [0, 1, 2], [1, 2, 0], []),
        *(([(0, 10 + i, 1), (2, 40 + i, 1), (1, 33 + i, 1)], [2, 1, 0], [1, 2, 0], []) for i in range(3)),
    ]
    for work, sample, owners, new in steps:
        for row, token in zip(owners, runner.execute(plan(work, sample, new)).tokens, strict=True):
            produced[row].append(token)
    assert [len(tokens) for tokens in produced] == [5, 6, 4]
    assert produced == [expected[row][: len(tokens)] for row, tokens in enumerate(produced)]


def test_blocks_arrive_as_they_are_needed(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    tokens = prompt(15)
    runner.execute(StepPlan(0, [NewRow(2, 7, tokens, 15, [5], GREEDY)], [2], [0], [15], [[]], [0]))
    produced = [
        runner.execute(StepPlan(1 + i, [], [2], [15 + i], [1], [[3] if i == 1 else []], [0])).tokens[0] for i in range(4)
    ]
    assert produced == greedy_tokens(model, tokens, 5)[1:]


def test_appended_tokens_extend_the_context(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    first, more = prompt(10, 1), prompt(8, 2)
    prefill(runner, first, MAX_LEN)
    # The sampled token at position 10 is overwritten: the next chunk starts there.
    result = runner.execute(plan([(0, 10, 8)], [0], appended=[RowTokens(0, 10, more)]))
    assert result.tokens == greedy_tokens(model, first + more, 1)


def test_rewinding_gives_the_same_tokens(runner: ModelRunner) -> None:
    prefill(runner, prompt(14), MAX_LEN)
    once = [runner.execute(plan([(0, 14 + i, 1)], [0])).tokens[0] for i in range(4)]
    again = [runner.execute(plan([(0, 14 + i, 1)], [0])).tokens[0] for i in range(4)]
    assert again == once
    assert runner.execute(plan([(0, 3, 12)], [0])).tokens == once[:1]


def test_rows_and_blocks_are_reused(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    prefill(runner, prompt(60, 1), MAX_LEN)
    runner.reset()
    tokens = prompt(5, 2)
    assert prefill(runner, tokens, MAX_LEN).tokens == greedy_tokens(model, tokens, 1)


def test_seeded_tokens_do_not_depend_on_the_batch(runner: ModelRunner) -> None:
    params = SamplingParams(temperature=1.0, seed=1234, top_p=0.95)
    other = SamplingParams(temperature=1.0, seed=99)
    tokens = prompt(12)
    alone = prefill_and_decode(runner, [new_row(0, tokens, params)], [12], 10)[0]
    together = prefill_and_decode(
        runner, [new_row(1, prompt(30, 5), other), new_row(2, tokens, params), new_row(0, prompt(20, 6))], [30, 12, 20], 10
    )
    assert together[1] == alone
    assert len(set(alone)) > 3


@pytest.mark.parametrize("style", [{"temperature": 0}, {"seed": 4}, {"seed": 4, "top_k": 5, "top_p": 0.9, "min_p": 0.1}])
def test_no_bias_brings_an_end_before_min_tokens(runner: ModelRunner, style: dict[str, Any]) -> None:
    def first_four(stop: int = EOS, **params: Any) -> list[int]:
        params = style | {"min_tokens": 3} | params
        row = new_row(0, prompt(12), SamplingParams(logit_bias={7: 60, stop: 100}, **params))
        return prefill_and_decode(runner, [row], [12], 3)[0]

    assert first_four() == [7, 7, 7, EOS]
    assert first_four(min_tokens=0) == [EOS] * 4
    assert first_four(ignore_eos=True) == [EOS] * 4
    assert first_four(ignore_eos=True, stop_token_ids=[EOS]) == [7, 7, 7, EOS]
    assert first_four(stop=11) == [11] * 4
    assert first_four(stop=11, stop_token_ids=[11]) == [7, 7, 7, 11]


def test_biases_leave_the_rest_of_the_batch_as_it_is(runner: ModelRunner) -> None:
    drawn = SamplingParams(seed=1234, top_p=0.95)
    alone = [prefill_and_decode(runner, [new_row(0, prompt(9), params)], [9], 5)[0] for params in (GREEDY, drawn)]
    forced = SamplingParams(seed=2, logit_bias={7: 100, 9: -100}, min_tokens=4)
    rows = [new_row(3, prompt(9), GREEDY), new_row(1, prompt(20), forced), new_row(2, prompt(9), drawn)]
    assert prefill_and_decode(runner, rows, [9, 20, 9], 5) == [alone[0], [7] * 6, alone[1]]
    # The row's next owner has none of it.
    assert prefill_and_decode(runner, [new_row(1, prompt(9))], [9], 5)[0] == alone[0]


def test_a_chunked_prompt_is_no_output_and_earlier_output_is_none_of_the_prompt(runner: ModelRunner) -> None:
    params = SamplingParams(temperature=0, logit_bias={7: 60, EOS: 100}, min_tokens=2)
    row = new_row(0, prompt(20), params)
    assert runner.execute(plan([(0, 0, 13)], [], [row])).tokens == []
    assert [runner.execute(plan([work], [0])).tokens for work in ((0, 13, 7), (0, 20, 1), (0, 21, 1))] == [[7], [7], [EOS]]
    again = msgspec.structs.replace(row, prompt_length=19)
    assert prefill_and_decode(runner, [again], [20], 1)[0] == [7, EOS]


def test_a_bias_outside_the_vocabulary_fails_its_request_alone(runner: ModelRunner) -> None:
    good, bad = new_row(0, prompt(9)), new_row(1, prompt(9), SamplingParams(temperature=0, logit_bias={10**6: 1}))
    alone = runner.execute(plan([(0, 0, 9)], [0], [good])).tokens
    result = runner.execute(plan([(1, 0, 9), (0, 0, 9)], [0, 1], [bad, good]))
    assert result.tokens == [FAILED_TOKEN, *alone]
    assert [(failure.index, failure.kind) for failure in result.failures] == [(0, "IndexError")]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("token", [EOS, 7, 9])
@pytest.mark.parametrize(
    "change",
    [
        {"logit_bias": {7: -100, 11: 100}, "min_tokens": 3},
        {"allowed_token_ids": [12, 13]},
        {"bad_words_token_ids": [[EOS], [7], [9]]},
        {"repetition_penalty": 2.0, "logprobs": 3},
    ],
)
def test_no_change_hides_logits_that_are_no_numbers(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], token: int, value: float
) -> None:
    compute_logits = runner._model.compute_logits

    def poison(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute_logits(hidden)
        logits[0, token] = value
        return logits

    monkeypatch.setattr(runner._model, "compute_logits", poison)
    params = SamplingParams(temperature=0, **change)
    rows = [new_row(0, prompt(9), params), new_row(1, prompt(9))]
    result = runner.execute(plan([(0, 0, 9), (1, 0, 9)], [0, 1], rows))
    assert [(failure.index, failure.kind) for failure in result.failures] == [(0, "NonFiniteLogitsError")]


def test_a_failing_request_fails_alone(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    good, bad = prompt(20), [5, 10**6, 7]  # a token outside the vocabulary
    result = runner.execute(plan([(1, 0, 3), (0, 0, 20)], [0, 1], [new_row(0, good), new_row(1, bad)]))
    assert result.tokens == [FAILED_TOKEN, *greedy_tokens(model, good, 1)]
    assert [(failure.index, failure.kind) for failure in result.failures] == [(0, "IndexError")]
    assert "Traceback" in result.failures[0].traceback


def test_a_request_that_failed_fails_in_the_step_planned_meanwhile_too(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    good, bad = prompt(20), [5, 10**6, 7]
    runner.execute(plan([(1, 0, 3), (0, 0, 20)], [0, 1], [new_row(0, good), new_row(1, bad)]))
    result = runner.execute(plan([(1, 3, 1), (0, 20, 1)], [0, 1]))
    assert result.tokens == [FAILED_TOKEN, greedy_tokens(model, good, 2)[-1]]
    assert [(failure.index, failure.kind) for failure in result.failures] == [(0, "RowFailed")]
    result = runner.execute(plan([(1, 0, 20)], [0], [new_row(1, good)]))
    assert (result.tokens, result.failures) == (greedy_tokens(model, good, 1), []), "another request enters the row"


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=1), SamplingParams(seed=2, temperature=0.5)])
def test_tokens_are_the_same_whether_anybody_sees_the_logits(
    directory: Path, monkeypatch: pytest.MonkeyPatch, params: SamplingParams
) -> None:
    requests = [new_row(row, prompt(10 + row), params) for row in range(3)]
    counts = [10, 11, 12]
    unseen = prefill_and_decode(make_runner(directory), requests, counts, 6)
    monkeypatch.setattr(Chooser, "is_plain", lambda *_: False)
    assert prefill_and_decode(make_runner(directory), requests, counts, 6) == unseen


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=1), SamplingParams(seed=1, top_p=0.5, top_k=7, min_p=0.1)])
def test_logits_that_are_no_numbers_fail_their_request(
    runner: ModelRunner, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, params: SamplingParams
) -> None:
    sample = Sampler.sample

    def poison(self: Sampler, logits: torch.Tensor, batch: Any) -> torch.Tensor:
        logits[1, 17] = float("nan")
        return sample(self, logits, batch)

    good = prompt(20)
    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "sample", poison)
        patch.setattr(Chooser, "is_plain", lambda *_: False)
        result = runner.execute(plan([(0, 0, 20), (1, 0, 4)], [0, 1], [new_row(0, good), new_row(1, prompt(4), params)]))
    assert result.tokens == [*greedy_tokens(model, good, 1), FAILED_TOKEN]
    assert [(failure.index, failure.kind) for failure in result.failures] == [(1, "NonFiniteLogitsError")]
    assert runner.execute(plan([(0, 20, 1)], [0])).failures == []


def test_a_poisoned_block_does_not_reach_its_next_owner(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    tokens = prompt(20)
    expected = prefill(runner, tokens, MAX_LEN).tokens
    assert runner._cache is not None
    with torch.inference_mode():
        for cache in (cache for layer in runner._cache.layers for cache in layer):
            cache[new_row(0, []).blocks[:2]] = float("nan")
    assert [failure.index for failure in runner.execute(plan([(0, 19, 1)], [0])).failures] == [0]
    assert prefill(runner, tokens, 3).tokens == expected


def test_a_chunk_that_is_not_finite_fails_before_others_find_it(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    good, bad = prompt(20), prompt(40, seed=5)
    runner.execute(plan([(0, 0, 16)], [], [new_row(0, bad)]))
    assert runner._cache is not None
    with torch.inference_mode():
        runner._cache.layers[0][0][new_row(0, []).blocks[0]] = float("nan")
    result = runner.execute(plan([(0, 16, 16), (1, 0, 20)], [1], [new_row(1, good)]))
    assert result.tokens == greedy_tokens(model, good, 1)
    assert [(failure.index, failure.kind) for failure in result.failures] == [(0, "NonFiniteLogitsError")]


def test_an_empty_step(runner: ModelRunner) -> None:
    assert runner.execute(plan([], [])) == StepResult(0, [])


def test_a_plan_beyond_what_is_known_is_refused(runner: ModelRunner) -> None:
    with pytest.raises(ValueError, match=r"row 0 up to position 12, but it has 9 tokens"):
        runner.execute(plan([(0, 0, 12)], [0], [new_row(0, prompt(9))]))
    with pytest.raises(ValueError, match="blocks for 16"):
        runner.execute(plan([(1, 0, 20)], [0], [NewRow(1, 1, prompt(20), 20, [2], GREEDY)]))
    with pytest.raises(ValueError, match="row 1 holds at most 97 tokens, got 98"):
        runner.execute(plan([(1, 0, 1)], [0], [new_row(1, prompt(98))]))
    with pytest.raises(ValueError, match="seed of row 1"):
        runner.execute(plan([(1, 0, 1)], [0], [new_row(1, prompt(2), SamplingParams())]))


def test_the_last_position_of_the_longest_sequence(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    tokens = prompt(MAX_LEN)
    assert prefill(runner, tokens, 50).tokens == greedy_tokens(model, tokens, 1)


@pytest.mark.parametrize("block", [-1, ROWS * BLOCKS_PER_ROW + 1000])
def test_a_block_that_there_is_not_is_refused(runner: ModelRunner, block: int) -> None:
    new = msgspec.structs.replace(new_row(0, prompt(4)), blocks=[block])
    with pytest.raises(ValueError, match="but the KV cache holds"):
        runner.execute(plan([(0, 0, 4)], [0], [new]))


def test_description(runner: ModelRunner, model: LlamaForCausalLM) -> None:
    runner.execute(plan([], []))
    description = runner.describe()
    parameters = sum(weight.numel() for weight in model.parameters())
    head = model.lm_head.weight.numel()  # tied, yet held once dense and once packed
    filled = 15 * head // model.config.vocab_size  # a kernel set may fill up the last sixteen outputs
    assert 4 * (parameters + head) <= description.weight_bytes <= 4 * (parameters + head + filled)
    assert description.cache_bytes == 2 * 2 * 2 * 16 * 4 * BLOCK_SIZE * ROWS * BLOCKS_PER_ROW
    assert (description.dtype, description.device, description.steps) == ("float32", "cpu", 1)
