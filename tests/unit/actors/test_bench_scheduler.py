"""`ringpost bench scheduler` with tiny counts: what it drives the scheduler with, its report, and its mistakes."""

import gc
import json
import re
from statistics import median
from typing import Any

import msgspec
import pytest

from ringpost.actors.benchmarks import scheduler
from ringpost.actors.benchmarks.hot_spots import SHOWN, hot_spots
from ringpost.actors.benchmarks.scheduler import ADMITTED, MEASUREMENTS, Report, Settings, cases
from ringpost.actors.cli import main
from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.results import StepResult
from ringpost.sched.outputs import StepUpdate
from ringpost.sched.scheduler import Scheduler

STEPS, REPEATS = 40, 2
TINY = ("--running", "1", "3", "--prompt-tokens", "40", "--steps", "2", "--repeat", "2")


def settings(**options: Any) -> Settings:
    defaults = {"running": [3], "prompt_tokens": [40], "steps": STEPS, "repeat": REPEATS}
    return Settings(**{**defaults, "async_scheduling": False, "profile": False, **options})


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(["bench", "scheduler", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


class Watched(Scheduler):
    """A scheduler that keeps what it said."""

    made: list["Watched"] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.plans: list[StepPlan] = []
        self.deltas: list[TokenDelta] = []
        self.most_in_flight = 0
        self.made.append(self)

    def schedule(self) -> StepPlan | None:
        plan = super().schedule()
        if plan is not None:
            self.plans.append(plan)
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        return plan

    def update(self, result: StepResult) -> StepUpdate:
        update = super().update(result)
        self.deltas += update.deltas
        return update


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    monkeypatch.setattr(scheduler, "Scheduler", Watched)
    monkeypatch.setattr(Watched, "made", [])
    return Watched.made


@pytest.mark.parametrize("in_the_background", [False, True])
def test_running_requests_get_a_token_each_step_and_none_ends(watched: list[Watched], in_the_background: bool) -> None:
    measure = MEASUREMENTS["decode"](settings(async_scheduling=in_the_background), 3)
    (driven,) = watched
    for _ in range(REPEATS + 1):  # once more for the profile
        del driven.plans[:], driven.deltas[:]
        measure()
        assert [(plan.new, plan.counts, len(plan.sample)) for plan in driven.plans] == [([], [1, 1, 1], 3)] * STEPS
        assert [delta.finish_reason for delta in driven.deltas] == [None] * 3 * STEPS
    assert driven.most_in_flight == (2 if in_the_background else 1)
    assert driven.stats().preemptions == 0


def test_running_requests_take_blocks_in_different_steps(watched: list[Watched]) -> None:
    MEASUREMENTS["decode"](settings(), 3)()
    (driven,) = watched
    assert max(sum(bool(blocks) for blocks in plan.blocks) for plan in driven.plans) == 1


@pytest.mark.parametrize(("name", "cached"), [("cold admission", 0), ("warm admission", 32)])
def test_admitted_requests_find_their_prefix_where_it_is_warm(watched: list[Watched], name: str, cached: int) -> None:
    measure = MEASUREMENTS[name](settings(), 40)
    (driven,) = watched
    for _ in range(REPEATS):
        del driven.plans[:], driven.deltas[:]
        measure()
        assert [(delta.finish_reason, delta.cached_tokens) for delta in driven.deltas] == [("length", cached)] * ADMITTED
        assert sum(len(plan.new) for plan in driven.plans) == ADMITTED
        assert sum(sum(plan.counts) for plan in driven.plans) == ADMITTED * (40 - cached)
    assert driven.stats().preemptions == 0


@pytest.mark.parametrize(("name", "size"), cases(settings()))
def test_figures_add_up(name: str, size: int) -> None:
    figures = MEASUREMENTS[name](settings(), size)()
    assert all(value > 0 for value in figures.values())
    if name == "decode":
        assert figures["step_us"] == pytest.approx(figures["plan_us"] + figures["update_us"])
        assert figures["request_us"] == pytest.approx(figures["step_us"] / size)
    else:
        assert figures["request_us"] == pytest.approx(figures["add_us"] + figures["plan_us"] + figures["update_us"])


def test_json_is_one_object_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "--json", *TINY)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out).keys() == {"benchmark", "machine", "settings", "results"}
    report = msgspec.json.decode(out, type=Report)
    assert report.benchmark == "scheduler"
    assert {"cpu_count", "load_average", "python", "ringpost"} < report.machine.keys()
    assert report.settings == settings(running=[1, 3], steps=2)
    assert [(result.measurement, result.size) for result in report.results] == cases(report.settings)
    assert [name for name, _ in cases(report.settings)] == ["decode", "decode", "cold admission", "warm admission"]
    for result in report.results:
        assert len(result.repeats) == REPEATS
        assert result.figures == {name: median(repeat[name] for repeat in result.repeats) for name in result.figures}
        assert result.hot_spots == []


def test_json_with_the_profile(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "--json", "--profile", "--async-scheduling", *TINY)
    report = msgspec.json.decode(out, type=Report)
    assert (code, err, report.settings.async_scheduling) == (0, "", True)
    for result in report.results:
        assert 0 < len(result.hot_spots) <= SHOWN
        shares = [spot.share for spot in result.hot_spots]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1.001
    assert any(spot.function == "scheduler: Scheduler.update" for spot in report.results[1].hot_spots)


def test_tables_show_figures(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, *TINY)
    assert (code, err) == (0, "")
    assert "Medians of 2 repeats, 1 steps in flight at most." in out
    assert "profiler" not in out
    assert re.search(r"│ +3 (│ +[\d.,]+ ){4}│\n", out)
    for kind in ("cold", "warm"):
        assert re.search(rf"│ +40 │ {kind} +(│ +[\d.,]+ ){{4}}│\n", out)


def test_tables_show_where_the_time_goes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "--profile", *TINY)
    assert (code, err) == (0, "")
    assert out.count("Own time under the profiler") == 4
    assert re.search(r"│ scheduler: Scheduler\.update +│ +2 │ +\d+\.\d% │\n", out)


def test_hot_spots_leave_out_who_measures() -> None:
    def slow() -> int:
        return sum(number for number in range(1000))

    assert [spot.function for spot in hot_spots(slow, leave_out=__file__)] == ["<built-in method builtins.sum>"]
    everything = {spot.function: spot.calls for spot in hot_spots(slow, leave_out="")}
    here = "test_bench_scheduler: test_hot_spots_leave_out_who_measures.<locals>.slow.<locals>.<genexpr>"
    assert everything[here] == 1001


def test_what_was_frozen_is_thawed(capsys: pytest.CaptureFixture[str]) -> None:
    assert gc.get_freeze_count() == 0
    assert bench(capsys, *TINY)[0] == 0
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--repeat", "0"], "repeat must be an integer of at least 1, got 0"),
        (["--steps", "0"], "steps must be an integer of at least 1, got 0"),
        (["--running", "1", "-2"], "running must be an integer of at least 1, got -2"),
        (["--prompt-tokens", "0"], "prompt_tokens must be an integer of at least 1, got 0"),
        (["--running", "many"], "--running"),
        (["--seconds", "1"], "unrecognized arguments: --seconds"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    code, out, err = bench(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert re.search(named, err)
