"""All that parameters change in logits, against plain loops over rows and tokens."""

import math
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ringpost.ipc.messages.config import EngineConfig
from ringpost.ipc.messages.plans import NewRow, RowTokens, StepPlan
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.kernels.select import select_kernels
from ringpost.model_runner.batch import StepRows
from ringpost.model_runner.choice import Choice, Chooser, NoTokenLeft, UnusableLogits
from ringpost.model_runner.logit_changes import LogitChanges, RowChanges
from ringpost.model_runner.processor_chain import ProcessorChain
from ringpost.model_runner.states import RowStates

VOCAB = 12
EOS = (2, 3)
MOST_ROWS = 6
TOKENS = st.integers(0, VOCAB - 1)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.just(0),
    logit_bias=st.none() | st.dictionaries(TOKENS, st.integers(-400, 400).map(lambda n: n / 4), max_size=5),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.lists(TOKENS, max_size=3),
    ignore_eos=st.booleans(),
    allowed_token_ids=st.none() | st.lists(TOKENS, min_size=1),
    # Of few different ids, so that outputs hold their beginnings.
    bad_words_token_ids=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=4),
    repetition_penalty=st.sampled_from((1.0, 0.5, 1.25, 3.0)),
    frequency_penalty=st.sampled_from((0.0, -0.5, 1.25)),
    presence_penalty=st.sampled_from((0.0, -1.5, 0.75)),
)
CASES = [pytest.param(60, id="reduced"), pytest.param(1000, id="full", marks=pytest.mark.long)]


@dataclass(frozen=True)
class Case:
    """A request with the output that it brings along and the one that is chosen for it here."""

    params: SamplingParams
    prompt: list[int]
    brought: list[int]
    chosen: list[int]


SHORT = st.lists(st.integers(0, 3) | TOKENS, max_size=5)
REQUESTS = st.builds(Case, PARAMS, st.lists(TOKENS, min_size=1, max_size=6), SHORT, st.lists(TOKENS, min_size=3, max_size=3))


def changed_row(logits: Sequence[float], params: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    """The contract, in plain Python."""
    changed = list(logits)
    out = set() if params.allowed_token_ids is None else {*range(VOCAB)} - {*params.allowed_token_ids}
    for *head, last in params.bad_words_token_ids:
        if not head or output[-len(head) :] == head:
            out.add(last)
    if len(output) < params.min_tokens:
        out |= {*params.stop_token_ids, *(() if params.ignore_eos else EOS)}
    for token, bias in (params.logit_bias or {}).items():
        changed[token] += bias
    for token in {*prompt, *output}:
        penalty = params.repetition_penalty
        changed[token] = changed[token] / penalty if changed[token] > 0 else changed[token] * penalty
    for token in {*output}:
        changed[token] -= output.count(token) * params.frequency_penalty + params.presence_penalty
    return [-math.inf if token in out else value for token, value in enumerate(changed)]


class Rows:
    """Rows of requests, and a chooser for them."""

    def __init__(self) -> None:
        self.states = RowStates(max_num_seqs=MOST_ROWS, max_model_len=40, block_size=4, vocab_size=VOCAB, eos_token_ids=EOS)
        processors = ProcessorChain(EngineConfig(), self.states)
        self.chooser = Chooser(self.states, select_kernels(), processors)

    def enter(self, row: int, params: SamplingParams, prompt: list[int], output: list[int]) -> None:
        new = NewRow(row, row, prompt + output, len(prompt), [], params)
        self.states.apply(StepPlan(0, [new], [], [], [], [], []))

    def step(self, rows: Sequence[int]) -> StepRows:
        starts = [int(self.states.lengths[row]) - 1 for row in rows]
        return StepRows.from_plan(StepPlan(0, [], [*rows], starts, [1] * len(rows), [], [*range(len(rows))]))

    def changed(self, logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        changed = self.chooser._changed(logits, self.step(rows))
        return logits.float() if changed is None else changed

    def choose(self, logits: torch.Tensor, rows: Sequence[int]) -> Choice:
        return self.chooser.choose(logits, self.step(rows))

    def put(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        self.states.put_sampled(np.array(rows), self.step(rows).ends, np.array(tokens))


@pytest.mark.parametrize("count", CASES)
def test_rows_change_as_they_would_one_by_one(count: int) -> None:
    generator = torch.Generator().manual_seed(3)

    @given(cases=st.lists(REQUESTS, min_size=1, max_size=MOST_ROWS), half=st.booleans(), order=st.randoms())
    @settings(max_examples=count, deadline=None)
    def check(cases: list[Case], half: bool, order: Any) -> None:
        rows, numbers = Rows(), [*range(len(cases))]
        order.shuffle(numbers)
        for row in numbers:
            # Whoever was in the row before leaves nothing behind.
            rows.enter(row, SamplingParams(temperature=0, presence_penalty=1, allowed_token_ids=[5]), [1], [4, 4])
            rows.changed(torch.zeros(1, VOCAB), [row])
            rows.enter(row, cases[row].params, cases[row].prompt, cases[row].brought)
        for position in range(4):
            logits = torch.randint(-40, 40, (len(cases), VOCAB), generator=generator).to(
                torch.bfloat16 if half else torch.float32
            )
            logits /= 4
            kept = logits.clone()
            changed = rows.changed(logits, numbers)
            assert torch.equal(logits, kept)
            for row, before, after in zip(numbers, logits, changed, strict=True):
                case = cases[row]
                expected = changed_row(before.tolist(), case.params, case.prompt, case.brought + case.chosen[:position])
                torch.testing.assert_close(after, torch.tensor(expected), rtol=1e-5, atol=1e-5)
            if position < 3:
                rows.put(numbers, [cases[row].chosen[position] for row in numbers])

    check()


def test_counts_follow_tokens_that_are_written_anew() -> None:
    rows, logits = Rows(), torch.zeros(1, VOCAB)
    rows.enter(0, SamplingParams(temperature=0, frequency_penalty=1), [1], [])
    for token in (4, 4, 5):
        rows.changed(logits, [0])
        rows.put([0], [token])
    assert rows.changed(logits, [0])[0, 4:6].tolist() == [-2, -1]
    rows.states.apply(StepPlan(1, [], [], [], [], [], [], appended=[RowTokens(0, 2, [5, 5])]))
    assert rows.changed(logits, [0])[0, 4:6].tolist() == [-1, -2]
    rows.states.lengths[0] = 3  # computed again from there on
    assert rows.changed(logits, [0])[0, 4:6].tolist() == [-1, -1]


def test_bad_words_take_no_more_memory_than_their_ids_do() -> None:
    """One long word does not make the others long."""
    word = [*range(255), 7]
    params = SamplingParams(temperature=0, bad_words_token_ids=[word, *([token, token + 1] for token in range(511))])
    tracemalloc.start()
    try:
        changes = RowChanges.from_params(params, 1, EOS)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert changes is not None
    assert held < 200_000
    said = np.array([9, *word[:-1]], dtype=np.int32)
    assert sorted(changes.out_at(256, said).tolist()) == [7, 255]
    assert changes.out_at(255, said).tolist() == [254]


def test_what_overflows_without_a_processor_is_not_blamed_on_one() -> None:
    rows = Rows()
    rows.enter(0, SamplingParams(temperature=0, repetition_penalty=1e-3), [1], [])
    rows.enter(1, SamplingParams(temperature=0, allowed_token_ids=[VOCAB]), [1], [])
    errors = rows.choose(torch.full((2, VOCAB), 3e38), [0, 1]).errors
    assert [type(errors[row]) for row in (0, 1)] == [UnusableLogits, NoTokenLeft]
    assert "repetition_penalty" in str(errors[0])
    assert not [error for error in errors.values() if "processor" in str(error)]


@pytest.mark.parametrize("params", [{}, {"min_tokens": 3}, {"min_tokens": 9, "ignore_eos": True}])
def test_nothing_to_change(params: dict[str, Any]) -> None:
    changes = [RowChanges.from_params(SamplingParams(**one), prompt, EOS) for one, prompt in ((params, 5), ({}, 1))]
    assert LogitChanges.from_rows(changes, [8, 1], [np.arange(9, dtype=np.int32)] * 2) is None


@pytest.mark.parametrize(
    "params",
    [
        {"min_tokens": 1, "stop_token_ids": [*range(VOCAB)], "logit_bias": {5: 100}},
        {"allowed_token_ids": [5, 6], "bad_words_token_ids": [[5], [6]]},
        {"allowed_token_ids": [5], "bad_words_token_ids": [[4, 5]], "frequency_penalty": -2},
        {"allowed_token_ids": [VOCAB, VOCAB + 1]},
    ],
)
@pytest.mark.parametrize("style", [{"temperature": 0}, {"seed": 1}, {"seed": 1, "top_k": 3, "top_p": 0.5, "min_p": 0.1}])
def test_a_row_in_which_no_token_is_left(params: dict[str, Any], style: dict[str, Any]) -> None:
    rows, logits = Rows(), torch.randn((3, VOCAB), generator=torch.Generator().manual_seed(0))
    good = [SamplingParams(**style), SamplingParams(**style, allowed_token_ids=[7])]
    # As output of another length, none of the lists takes out everything.
    for row, one in enumerate((good[0], SamplingParams(**style, **params), good[1])):
        rows.enter(row, one, [1, 4], [4] if "frequency_penalty" in params else [])
    choice = rows.choose(logits, [0, 1, 2])
    assert choice.finite.all()
    assert {row: type(error) for row, error in choice.errors.items()} == {1: NoTokenLeft}
    assert choice.tokens[2] == 7
    assert choice.tokens[0] == rows.choose(logits[:1], [0]).tokens[0]


def test_narrow_logits_of_a_registered_model() -> None:
    rows = Rows()
    rows.enter(0, SamplingParams(temperature=0), [1], [])
    logits = torch.zeros((1, VOCAB), dtype=torch.bfloat16)
    logits[0, 3] = 2
    choice = rows.choose(logits, [0])
    assert (choice.tokens.tolist(), choice.finite.tolist(), choice.errors) == ([3], [True], {})
