"""Biases and the mask before min_tokens, against plain loops over rows."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.kernels.select import select_kernels
from ringpost.model_runner.logit_changes import LogitChanges, RowChanges
from ringpost.model_runner.sampler import Sampler, SamplingBatch

VOCAB = 12
EOS = (2, 3)
TOKENS = st.integers(0, VOCAB - 1)
ROWS = st.builds(
    SamplingParams,
    logit_bias=st.none() | st.dictionaries(TOKENS, st.integers(-400, 400).map(lambda n: n / 4), max_size=5),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.lists(TOKENS, max_size=3),
    ignore_eos=st.booleans(),
)


def changed_row(logits: list[float], params: SamplingParams, num_output: int) -> list[float]:
    """The contract, in plain Python."""
    changed = list(logits)
    for token, bias in (params.logit_bias or {}).items():
        changed[token] += bias
    if num_output < params.min_tokens:
        for token in (*params.stop_token_ids, *(() if params.ignore_eos else EOS)):
            changed[token] = -math.inf
    return changed


def changes_of(*cases: tuple[SamplingParams, int, int]) -> LogitChanges | None:
    """Of rows given by parameters, length of the prompt, and length of the output."""
    changes = [RowChanges.from_params(params, prompt, EOS) for params, prompt, _ in cases]
    return LogitChanges.from_rows(changes, [prompt + output for _, prompt, output in cases])


@given(cases=st.lists(st.tuples(ROWS, st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=6), dtype=st.booleans())
@settings(max_examples=200, deadline=None)
def test_rows_change_as_they_would_one_by_one(cases: list[tuple[SamplingParams, int, int]], dtype: bool) -> None:
    logits = torch.arange(len(cases) * VOCAB).view(len(cases), VOCAB).to(torch.bfloat16 if dtype else torch.float32) / 4
    kept, changes = logits.clone(), changes_of(*cases)
    expected = [changed_row(row, case[0], case[2]) for row, case in zip(logits.tolist(), cases, strict=True)]
    changed = logits.float() if changes is None else changes.apply(logits)
    assert changed.tolist() == expected
    assert torch.equal(logits, kept)


@pytest.mark.parametrize("params", [{}, {"min_tokens": 3}, {"min_tokens": 9, "ignore_eos": True}])
def test_nothing_to_change(params: dict[str, Any]) -> None:
    assert changes_of((SamplingParams(**params), 5, 3), (SamplingParams(), 1, 0)) is None


def test_a_row_in_which_no_token_is_left_still_gives_one() -> None:
    everything = SamplingParams(min_tokens=1, stop_token_ids=list(range(VOCAB)), logit_bias={5: 100})
    changes = changes_of((everything, 5, 0), (everything, 5, 0))
    assert changes is not None
    batch = SamplingBatch(
        greedy=torch.tensor([True, False]),
        temperature=torch.ones(2),
        top_k=torch.tensor([0, 3]),
        top_p=torch.tensor([1.0, 0.5]),
        min_p=torch.tensor([0.0, 0.1]),
        seeds=torch.tensor([0, 1]),
        positions=torch.tensor([5, 5]),
    )
    tokens = Sampler(select_kernels()).sample(changes.apply(torch.zeros(2, VOCAB)), batch)
    assert all(0 <= token < VOCAB for token in tokens.tolist())
