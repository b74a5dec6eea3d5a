"""`ringpost bench throughput` and `ringpost bench latency` on a tiny model: their reports, their tables, and their mistakes."""

import json
import re
from typing import Any

import msgspec
import pytest

from ringpost.actors import bench_engine as command
from ringpost.actors.benchmarks.engine_report import LatencyReport, LatencySettings, Point, ThroughputReport, ThroughputSettings
from ringpost.actors.benchmarks.engine_tables import print_latency_report, print_throughput_report
from ringpost.actors.benchmarks.step_phases import Breakdown, Look, breakdown
from ringpost.actors.benchmarks.throughput import points_of
from ringpost.actors.cli import main
from ringpost.ipc.messages.descriptions import WorkerDescription
from ringpost.ipc.messages.outputs import EngineDescription

CORE = ("update", "messages", "plan", "submit", "beside", "wait", "idle")
WORKER = ("idle", "receive", "rows", "inputs", "forward", "logits", "choose", "result", "send")


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(["bench", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def check_breakdown(found: Breakdown, *, alternating: bool) -> None:
    """All phases are there, and those of a process fill the step, as far as these can be compared."""
    names = {process: [phase.name for phase in found.phases if phase.process == process] for process in ("core", "worker")}
    assert sorted(names["core"]) == sorted(CORE)
    assert sorted(names["worker"]) == sorted(WORKER)
    assert [phase.name for phase in found.phases if phase.process == "between"] == ["mailboxes"] * alternating
    for process in names:
        assert 0.5 < sum(phase.share for phase in found.phases if phase.process == process) < 1.5
    for phase in found.phases:
        assert phase.step_us >= 0
        assert phase.share == pytest.approx(phase.step_us / 1000 / found.step_ms)
    forward = next(phase for phase in found.phases if phase.name == "forward")
    assert forward.step_us > 0
    assert found.output_token_us > 0
    assert found.frontend_cpu_token_us > 0


@pytest.mark.parametrize("options", [[], ["--async-scheduling"]], ids=["alternating", "async"])
def test_throughput_is_measured_point_by_point(
    no_leaks: None, tiny: str, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    load = ("-c", "1", "3", "--input-len", "20", "--output-len", "6", "--num-prompts", "5")
    code, out, err = bench(capsys, "throughput", "--model", tiny, *load, "--dtype", "float32", *options, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out).keys() == set(ThroughputReport.__struct_fields__)
    report = msgspec.json.decode(out, type=ThroughputReport)
    given: dict[str, Any] = {"dtype": "float32"} | ({"async_scheduling": True} if options else {})
    points = [Point(1, 20, 6, 5), Point(3, 20, 6, 5)]
    assert report.settings == ThroughputSettings(model=tiny, options=given, points=points)
    assert (report.machine["device"], report.machine["dtype"]) == ("cpu", "float32")
    assert [found.point for found in report.results] == points
    for found in report.results:
        assert found.tokens_per_second == pytest.approx(5 * 6 / found.seconds)
        for spread in (found.first_token, found.inter_token):
            assert 0 < spread.p50 <= spread.p99 <= spread.longest
        check_breakdown(found.breakdown, alternating=not options)
    assert report.results[0].breakdown.steps >= 5 * 6


def test_latency_is_measured_batch_by_batch(no_leaks: None, tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"batch_size": 3, "input_len": 20, "output_len": 6, "repeat": 2}
    arguments = [word for name, count in counts.items() for word in (f"--{name.replace('_', '-')}", str(count))]
    code, out, err = bench(capsys, "latency", "--model", tiny, *arguments, "--num-threads", "1", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out).keys() == set(LatencyReport.__struct_fields__)
    report = msgspec.json.decode(out, type=LatencyReport)
    assert report.settings == LatencySettings(model=tiny, options={"num_threads": "1"}, **counts)
    assert report.machine["threads"] == 1
    assert len(report.batches) == 2
    assert report.mean == pytest.approx(sum(report.batches) / 2)
    assert report.batch.longest == max(report.batches)
    assert report.tokens_per_second == pytest.approx(2 * 3 * 6 / sum(report.batches))
    assert 0 < report.first_token.p50 < report.batch.longest
    assert 0 < report.step.p50 <= report.step.longest
    assert report.breakdown.steps >= 2 * 6
    check_breakdown(report.breakdown, alternating=True)


def look(time: float, scale: float, steps: int) -> Look:
    """An engine each of whose phases has taken `scale` seconds, and its worker's forward ten times that."""
    worker = dict.fromkeys(WORKER, scale) | {"forward": 10 * scale}
    core = dict.fromkeys(CORE, scale) | {"wait": 20 * scale}
    described = WorkerDescription(0, 1, "cpu", "float32", 1, 0, 0, steps, worker)
    return Look(time, 3 * scale, scale, 10 * steps, EngineDescription(0, 0, 8, 8, steps, phases=core, workers=[described]))


def test_two_looks_give_the_mean_step() -> None:
    found = breakdown(look(10, 0.5, 3), look(14, 1.5, 5), alternating=True)
    assert (found.steps, found.step_ms) == (2, 2000)
    figures = {(phase.process, phase.name): (phase.step_us, phase.share) for phase in found.phases}
    assert figures["worker", "forward"] == (5e6, 2.5)
    assert figures["core", "plan"] == (0.5e6, 0.25)
    # Of 22 between a plan and its result the worker has worked 16.
    assert figures["between", "mailboxes"] == (3e6, 1.5)
    assert (found.output_token_us, found.frontend_cpu_token_us) == (1e6 / 20, 3e6 / 20)
    unknown = breakdown(look(10, 0.5, 3), look(14, 1.5, 5), alternating=False)
    assert {phase.process for phase in unknown.phases} == {"core", "worker", "frontend"}


def test_no_steps_are_no_fault() -> None:
    still = breakdown(look(10, 0.5, 3), look(14, 0.5, 3), alternating=True)
    assert still.steps == 0
    assert {phase.step_us for phase in still.phases} == {0}


def report_of(points: list[Point]) -> dict[str, Any]:
    """What a throughput report is made of, with figures that can be told apart."""
    phases = [
        {"process": process, "name": name, "step_us": 1234.4, "share": 0.25}
        for process, name in (("core", "plan"), ("between", "mailboxes"), ("worker", "forward"), ("frontend", "outputs"))
    ]
    found = {"steps": 77, "step_ms": 4.94, "phases": phases, "output_token_us": 12.3, "frontend_cpu_token_us": 45.6}
    spread = {"p50": 0.0111, "p99": 0.0222, "longest": 0.0333}
    results = [
        {"point": msgspec.to_builtins(point), "seconds": 2.5, "tokens_per_second": 1234.5}
        | {"first_token": spread, "inter_token": spread, "breakdown": found}
        for point in points
    ]
    settings = {"model": "my[bold]", "options": {"dtype": "float32"}, "points": msgspec.to_builtins(points)}
    return {"benchmark": "throughput", "machine": {"cpu_count": 2}, "settings": settings, "results": results}


def test_tables_of_throughput_show_figures(capsys: pytest.CaptureFixture[str]) -> None:
    raw = report_of([Point(1, 128, 64, 4), Point(8, 32, 16, 16)])
    print_throughput_report(msgspec.convert(raw, ThroughputReport))
    out = capsys.readouterr().out
    assert "Model my[bold], dtype float32." in out
    assert re.search(r"│ +8 │ +32 │ +16 │ +16 │ +1,234.5 │ +11.1 │ +22.2 │ +11.1 │ +22.2 │\n", out)
    assert "1 x 128+64" in out
    for name in ("plan the next step", "mailboxes and wake-ups", r"forward \(body\)", "detokenise, hand over"):
        assert re.search(rf"│ {name} +│ +1,234 +25.0% │ +1,234 +25.0% │\n", out)
    assert re.search(r"│ mean, in ms +│ +4.94 │ +4.94 │\n│ +│ how many +│ +77 │ +77 │\n", out)
    assert "choose tokens" not in out, "a phase that nobody has told of"


def test_tables_of_latency_show_figures(capsys: pytest.CaptureFixture[str]) -> None:
    raw = report_of([Point(8, 32, 128, 8)])
    (found,) = raw.pop("results")
    counts = {"batch_size": 8, "input_len": 32, "output_len": 128, "repeat": 5}
    settings = {"model": "my[bold]", "options": {}} | counts
    spread = {"p50": 0.0444, "p99": 0.0555, "longest": 0.0666}
    latency = {"batches": [1.0], "mean": 1.0, "batch": spread, "first_token": spread, "step": spread}
    latency |= {"tokens_per_second": 99.5, "breakdown": found["breakdown"], "settings": settings, "benchmark": "latency"}
    print_latency_report(msgspec.convert(raw | latency, LatencyReport))
    out = capsys.readouterr().out
    assert "Model my[bold].\n" in out
    assert "5 batches of 8 requests at once, 32 tokens in, 128 out." in out
    for name in ("batch", "first token", "step"):
        assert re.search(rf"│ {name} +│ +44.4 │ +55.5 │ +66.6 │\n", out)
    assert "Mean of the batches 1,000.0 ms; 99.5 tokens of output a second." in out
    assert re.search(r"│ +│ all CPU of this process +│ +45.6 │\n", out)


def test_what_is_measured_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given: list[Any] = []

    async def measure(settings: Any, done: object) -> Any:
        given.append(settings)
        return settings

    monkeypatch.setattr(command, "run_throughput_benchmark", measure)
    monkeypatch.setattr(command, "run_latency_benchmark", measure)
    assert [bench(capsys, name, "--json")[0] for name in ("throughput", "latency")] == [0, 0]
    points = [Point(1, 128, 128, 4), Point(8, 128, 128, 16), Point(32, 128, 128, 64), Point(64, 32, 64, 128)]
    assert given == [
        ThroughputSettings(model="smollm2", options={}, points=points),
        LatencySettings(model="smollm2", options={}, batch_size=8, input_len=32, output_len=128, repeat=5),
    ]


def test_what_is_asked_for_is_all_that_is_measured() -> None:
    assert points_of([2], None, None, None) == [Point(2, 128, 128, 4)]
    assert points_of(None, 7, 9, 11) == [Point(1, 7, 9, 11), Point(8, 7, 9, 11), Point(32, 7, 9, 11)]
    assert len(points_of(None, None, None, 11)) == 3


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["throughput", "-c", "4", "0"], "concurrency must be an integer of at least 1, got 0"),
        (["throughput", "--input-len", "0"], "input_len must be an integer of at least 1, got 0"),
        (["throughput", "--output-len", "1"], "output_len must be an integer of at least 2, got 1"),
        (["throughput", "--num-prompts", "0"], "num_prompts must be an integer of at least 1, got 0"),
        (["throughput", "--dtype", "float8"], "dtype must be .*, got 'float8'"),
        (["throughput", "--single-process"], "single_process must be false"),
        (["throughput", "--port", "1"], "unrecognized arguments: --port"),
        (["latency", "--batch-size", "0"], "batch_size must be an integer of at least 1, got 0"),
        (["latency", "--repeat", "0"], "repeat must be an integer of at least 1, got 0"),
        (["latency", "--model", "/no/such/model"], "model '/no/such/model' does not exist"),
    ],
)
def test_a_mistake_is_one_line(no_leaks: None, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    code, out, err = bench(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert re.search(named, err)


def test_requests_that_do_not_fit_are_refused(no_leaks: None, tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "latency", "--model", tiny, "--input-len", "500", "--output-len", "13")
    assert (code, out) == (2, "")
    assert "input_len and output_len must be at most 512 together with this model, got 500 and 13" in err
