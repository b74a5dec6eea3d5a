"""A custom logits processor that fails about one request harms no other, in that step or in those after it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tiny_checkpoint import write_tiny_llama
from tiny_runner import GREEDY, make_runner, new_row, plan, prefill_and_decode, prompt
from torch import Tensor

from ringpost.ipc.messages.config import EngineConfig
from ringpost.ipc.messages.plans import NewRow
from ringpost.ipc.messages.results import StepResult
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.model_runner.logits_processor import BatchUpdate, LogitsProcessor
from ringpost.model_runner.runner import ModelRunner


class Strict(LogitsProcessor):
    """Knows just the requests that it has taken; extra_args name the processor that refuses one, or fails to apply to it."""

    made: "list[Strict]" = []

    def __init__(self, config: EngineConfig, number: int) -> None:
        self.number, self.broken = number, False
        self.rows: dict[int, dict[str, Any]] = {}
        self.told: list[tuple[list[int], list[int]] | None] = []
        self.applied: list[list[int]] = []
        self.made.append(self)

    def update_state(self, update: BatchUpdate | None) -> None:
        self.told.append(None if update is None else ([*update.removed], [added.row for added in update.added]))
        if self.broken:
            raise RuntimeError("broken")
        for row in update.removed if update else ():
            del self.rows[row]
        for added in update.added if update else ():
            args = dict(added.params.extra_args or {})
            if args.get("refused_by") == self.number:
                raise TypeError("refused")
            self.rows[added.row] = args

    def apply(self, logits: Tensor, rows: Tensor) -> Tensor:
        self.applied.append(rows.tolist())
        if any(self.rows[row].get("fails_with") == self.number for row in rows.tolist()):
            raise ValueError("failed")
        return logits


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    own = ModuleType("strict_processors")
    own.__dict__["Strict"] = Strict
    monkeypatch.setitem(sys.modules, "strict_processors", own)
    Strict.made.clear()
    yield
    Strict.made.clear()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def runner_with(directory: Path, count: int) -> tuple[ModelRunner, list[Strict]]:
    entries = tuple(f'strict_processors.Strict {{"number": {number}}}' for number in range(count))
    return make_runner(directory, logits_processors=entries), Strict.made


def entering(row: int, **extra: Any) -> NewRow:
    return new_row(row, prompt(9), SamplingParams(temperature=0, extra_args=extra))


def failed(result: StepResult) -> list[tuple[int, str]]:
    return [(failure.index, failure.kind) for failure in result.failures]


def test_a_request_that_is_refused_is_not_removed_from_who_never_took_it(directory: Path) -> None:
    runner, (first, second, third) = runner_with(directory, 3)
    result = runner.execute(plan([(0, 0, 9), (1, 0, 9)], [0, 1], [entering(0), entering(1, refused_by=1)]))
    assert failed(result) == [(1, "LogitsProcessorError")]
    assert "TypeError('refused')" in result.failures[0].message
    assert runner.execute(plan([(0, 9, 1)], [0])).failures == []
    assert first.told == [([], [0]), ([], [1]), ([1], [])]
    assert second.told == [([], [0]), ([], [1]), None]
    assert third.told == [([], [0]), None]
    for _ in range(3):
        assert runner.execute(plan([(1, 0, 9)], [0], [entering(1)])).failures == []
    assert second.told[3:] == [([], [1]), *[([1], []), ([], [1])] * 2]


def test_a_refused_request_takes_its_row_from_another_once(directory: Path) -> None:
    runner, (one,) = runner_with(directory, 1)
    runner.execute(plan([(0, 0, 9), (1, 0, 9)], [0, 1], [entering(0), entering(1)]))
    assert failed(runner.execute(plan([(0, 9, 1), (1, 0, 9)], [0, 1], [entering(1, refused_by=0)]))) == [
        (1, "LogitsProcessorError")
    ]
    assert runner.execute(plan([(0, 10, 1), (1, 0, 9)], [0, 1], [entering(1)])).failures == []
    assert one.told[2:] == [([1], []), ([], [1]), ([], [1])]


def test_a_refused_request_fails_once_it_is_computed(directory: Path) -> None:
    runner, _ = runner_with(directory, 1)
    assert runner.execute(plan([(0, 0, 9)], [0], [entering(0), entering(1, refused_by=0)])).failures == []
    assert failed(runner.execute(plan([(1, 0, 9), (0, 9, 1)], [0, 1]))) == [(0, "LogitsProcessorError")]
    assert runner.execute(plan([(1, 0, 9), (0, 10, 1)], [0, 1], [entering(1)])).failures == []


def test_one_that_cannot_let_go_of_a_request_fails_nobody(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    runner, (one,) = runner_with(directory, 1)
    runner.execute(plan([(row, 0, 9) for row in range(3)], [0, 1, 2], [entering(row) for row in range(3)]))
    del one.rows[1]
    new = [entering(1), entering(2)]
    assert runner.execute(plan([(0, 9, 1), (1, 0, 9), (2, 0, 9)], [0, 1, 2], new)).failures == []
    assert ["the request in row 1 is gone" in record.message for record in caplog.records] == [True]
    assert runner.execute(plan([(0, 10, 1), (1, 9, 1), (2, 9, 1)], [0, 1, 2])).failures == []
    assert one.told[3:] == [([1], []), ([2], []), ([], [1]), ([], [2]), None]


def test_one_that_fails_whoever_runs_keeps_nothing_from_the_others(directory: Path) -> None:
    runner, (broken, other) = runner_with(directory, 2)
    runner.execute(plan([(0, 0, 9), (1, 0, 9)], [0, 1], [entering(0), entering(1)]))
    broken.broken = True
    assert failed(runner.execute(plan([(0, 9, 1), (1, 0, 9)], [0, 1], [entering(1)]))) == [(1, "LogitsProcessorError")]
    assert failed(runner.execute(plan([(0, 10, 1)], [0]))) == [(0, "LogitsProcessorError")]
    broken.broken = False
    assert runner.execute(plan([(0, 0, 9), (1, 0, 9)], [0, 1], [entering(0), entering(1)])).failures == []
    assert other.told == [([], [0]), ([], [1]), ([1], []), ([0], []), ([], [0]), ([], [1])]


def test_a_request_that_one_fails_for_costs_no_other_forward(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, (one,) = runner_with(directory, 1)
    compute_logits, computed = runner._model.compute_logits, []

    def count(hidden: Tensor) -> Tensor:
        computed.append(len(hidden))
        return compute_logits(hidden)

    monkeypatch.setattr(runner._model, "compute_logits", count)
    params = [
        SamplingParams(seed=3),
        SamplingParams(extra_args={"fails_with": 0}, seed=1),
        GREEDY,
        SamplingParams(seed=4, logprobs=2),
    ]
    rows = [new_row(row, prompt(9, row), each) for row, each in enumerate(params)]
    result = runner.execute(plan([(row, 0, 9) for row in range(4)], [0, 1, 2, 3], rows))
    assert computed == [4]
    assert failed(result) == [(1, "LogitsProcessorError")]
    assert one.applied == [[0, 1, 2, 3], [0], [1], [2], [3]]
    assert [entry is not None for entry in result.logprobs] == [False, False, False, True]
    alone = [prefill_and_decode(make_runner(directory), [row], [9], 0)[0][0] for row in (rows[0], rows[2], rows[3])]
    assert result.tokens == [alone[0], -1, *alone[1:]]
