"""The clock of a loop's phases, and what the runner tells by it."""

from pathlib import Path

import pytest
from tiny_checkpoint import write_tiny_llama
from tiny_runner import make_runner, new_row, prefill_and_decode, prompt

from ringpost.model_runner import phases
from ringpost.model_runner.phases import PhaseClock


def test_time_goes_to_the_phase_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.0, 13.5, 20.0, 20.25, 21.0])
    monkeypatch.setattr(phases, "perf_counter", lambda: next(times))
    clock = PhaseClock("first", "second", "third")
    clock.mark("second")
    clock.mark("first")
    clock.skip()
    clock.mark("second")
    assert clock.seconds == {"first": 2.5, "second": 1.25, "third": 0.0}
    with pytest.raises(KeyError):
        clock.mark("fourth")


def test_the_runner_tells_where_the_time_of_its_steps_went(tmp_path: Path) -> None:
    runner = make_runner(write_tiny_llama(tmp_path / "tiny"))
    before = runner.describe()
    assert set(before.phases.values()) == {0}
    prefill_and_decode(runner, [new_row(0, prompt(9))], [9], 4)
    after = runner.describe()
    assert after.steps - before.steps >= 4
    assert list(after.phases) == ["rows", "inputs", "forward", "logits", "choose", "result"]
    assert min(after.phases.values()) > 0
    assert set(before.phases.values()) == {0}, "a description is of its own moment"
