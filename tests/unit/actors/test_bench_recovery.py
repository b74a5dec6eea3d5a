"""`ringpost bench recovery` on a tiny model: its streams and how they compare, its report, and its mistakes."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from ringpost import SamplingParams
from ringpost.actors import bench as command
from ringpost.actors.benchmarks.command import run_until_sigterm
from ringpost.actors.benchmarks.launch import BenchmarkError
from ringpost.actors.benchmarks.recovery import _is_left
from ringpost.actors.benchmarks.recovery_report import FAULTS, MARK, Overhead, Report, Result, Settings
from ringpost.actors.benchmarks.recovery_run import Run
from ringpost.actors.benchmarks.recovery_streams import Stream, questions, tokens_per_second
from ringpost.actors.benchmarks.recovery_tables import print_recovery_report
from ringpost.actors.cli import main
from ringpost.actors.errors import EngineGenerateError
from ringpost.actors.frontend.async_llm import AsyncLLM
from ringpost.actors.frontend.outputs import CompletionOutput, RequestOutput
from ringpost.actors.frontend.stats import FrontendStats
from ringpost.actors.logs import logger
from ringpost.actors.supervisor import ProcessInfo
from ringpost.ipc.messages.config import Checkpoint, EngineConfig


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(["bench", "recovery", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command puts what it does not keep."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_core_dies_under_two_streams(no_leaks: None, tiny: str, temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    level = logger.level
    arguments = ("--model", tiny, "--streams", "2", "--tokens", "16", "--faults", "core", "--hang-timeout", "60", "--json")
    code, out, err = bench(capsys, *arguments)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out).keys() == set(Report.__struct_fields__)
    report = msgspec.json.decode(out, type=Report)
    assert report.settings == Settings(model=tiny, streams=2, tokens=16, faults=["core"], hang_timeout=60, overhead=0)
    none, core = report.results
    assert (none.fault, none.replaced, core.fault, core.replaced) == ("none", [], "core", ["core0 killed"])
    for result in report.results:
        assert (result.tokens_lost, result.tokens_changed, result.streams_failed, result.errors) == (0, 0, 0, [])
        assert result.streams_struck == 2
        assert result.longest_pause_s > 0
        assert result.new_request_s
    assert (report.processes_seen, report.processes_left, report.overhead) == (3, 0, None)
    assert list(temporary.iterdir()) == []
    assert logger.level == level


def test_streams_differ_in_all_that_may_matter() -> None:
    asked = questions(10, 48, 300)
    assert asked == questions(10, 48, 300)
    assert len({tuple(prompt) for prompt, _ in asked}) == len(asked)
    assert len({(len(prompt), params.temperature) for prompt, params in asked}) == len(asked)
    assert {params.temperature for _, params in asked} == {0, 0.8}
    assert len({params.seed for _, params in asked}) == len(asked)
    assert all(params.max_tokens == 48 and params.ignore_eos for _, params in asked)
    assert all(0 <= token < 300 for prompt, _ in asked for token in prompt)


@pytest.mark.parametrize(
    ("found", "lost", "changed"),
    [([1, 2, 3], 0, 0), ([1, 2], 1, 0), ([], 3, 0), ([1, 9, 3], 0, 1), ([2, 3], 1, 2), ([1, 2, 3, 3], 0, 1)],
)
def test_streams_are_compared(found: list[int], lost: int, changed: int) -> None:
    wanted, stream = Stream(tokens=[1, 2, 3]), Stream(tokens=found)
    assert (stream.lost(wanted), stream.changed(wanted)) == (lost, changed)


def test_times_of_streams() -> None:
    early, late = Stream(began=10, times=[11, 11.5, 14, 15], tokens=[1, 2, 3, 4, 5]), Stream(began=12, times=[20], tokens=[1])
    assert (early.first_token_seconds, early.longest_pause) == (1, 2.5)
    assert (late.first_token_seconds, late.longest_pause) == (8, 0)
    assert (Stream().first_token_seconds, Stream().longest_pause) == (None, 0)
    assert tokens_per_second([early, late]) == pytest.approx(0.6)


class Engine:
    """As much of an engine as a run sees, without processes. Each request takes its turn to get the next token."""

    def __init__(self, *, fails_at: int | None = None, hangs: int = 0, worker: int = 12) -> None:
        """The first request fails after so many tokens; so many processes die by themselves; `worker` is the pid of one."""
        self.config = EngineConfig(checkpoint=Checkpoint(vocab_size=300, max_model_len=200))
        self.stats = FrontendStats()
        self.sent: list[int] = []  # tokens by request
        self._fails_at = fails_at
        self._hangs = hangs
        self._worker = worker

    def process_table(self) -> list[ProcessInfo]:
        pids = {"frontend": 1, "engine_core": 11, "worker": self._worker}
        return [ProcessInfo(kind, kind, pid, 0.0) for kind, pid in pids.items()]

    async def reset_prefix_cache(self) -> None:
        self.stats.died([("worker0.0", "hung")] * self._hangs, 0)

    async def generate(self, prompt: list[int], params: SamplingParams) -> AsyncGenerator[RequestOutput, None]:
        number = len(self.sent)
        self.sent.append(0)
        assert params.max_tokens is not None
        for token in range(params.max_tokens):
            if number == 0 and token == self._fails_at:
                raise EngineGenerateError("it fails")
            self.sent[number] += 1
            yield RequestOutput("", None, prompt, [CompletionOutput(0, "", [token])], token + 1 == params.max_tokens)
            await asyncio.sleep(0)


Kill = tuple[int, signal.Signals, list[int]]


def run_of(engine: Engine, fault: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, list[Kill]]:
    """A run, and whom it will have struck: pid, signal and what the engine had sent by then."""
    kills: list[Kill] = []
    monkeypatch.setattr(os, "kill", lambda pid, how: kills.append((pid, how, [*engine.sent])))
    return Run(cast("AsyncLLM", engine), fault), kills


@pytest.mark.parametrize(
    ("fault", "struck"),
    [
        ("none", []),
        ("worker", [(12, signal.SIGKILL)]),
        ("core", [(11, signal.SIGKILL)]),
        ("hang", [(12, signal.SIGSTOP)]),
        ("both", [(11, signal.SIGKILL), (12, signal.SIGKILL)]),
    ],
)
def test_a_fault_strikes_when_every_stream_is_under_way(
    fault: str, struck: list[tuple[int, signal.Signals]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine()
    run, kills = run_of(engine, fault, monkeypatch)
    asyncio.run(run.measure(3, 16))
    assert [(pid, how) for pid, how, _ in kills] == struck
    assert all(len(sent) == 3 and min(sent) == MARK and max(sent) <= MARK + 1 for _, _, sent in kills)
    assert engine.sent == [16, 16, 16, 1]  # the last one is the new request
    assert run.pids == {11, 12}
    found = run.result(run.streams)
    assert (found.fault, found.streams_struck, found.streams_failed, found.replaced) == (fault, 3, 0, [])
    assert found.new_request_s is not None


@pytest.mark.parametrize("fails_at", [2, MARK + 2])
def test_a_stream_that_fails_is_told(fails_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it fails before the fault strikes, which comes all the same."""
    run, kills = run_of(Engine(fails_at=fails_at), "core", monkeypatch)
    asyncio.run(run.measure(2, 16))
    found = run.result([Stream(tokens=[*range(16)]), Stream(tokens=[*range(16)])])
    assert (found.streams_failed, found.tokens_lost, found.tokens_changed) == (1, 16 - fails_at, 0)
    assert found.errors == ["it fails"]
    assert (len(kills), found.streams_struck) == (1, 1 if fails_at < MARK else 2)


@pytest.mark.parametrize(
    ("engine", "fault", "tokens", "named"),
    [
        (Engine(fails_at=5), "none", 16, "undisturbed run was disturbed: it fails; hang_timeout"),
        (Engine(hangs=2), "none", 16, "undisturbed run was disturbed: worker0.0 hung; worker0.0 hung; hang_timeout"),
        (Engine(worker=0), "both", 16, "both: there is no worker to strike"),
        (Engine(), "core", 197, "tokens must be at most 184 with this model and the longest prompt, got 197"),
    ],
)
def test_nothing_is_measured_that_is_not_so(
    engine: Engine, fault: str, tokens: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, kills = run_of(engine, fault, monkeypatch)
    with pytest.raises((BenchmarkError, ValueError), match=re.escape(named)):
        asyncio.run(run.measure(2, tokens))
    assert kills == []


def result(fault: str, **options: Any) -> Result:
    defaults: dict[str, Any] = {"longest_pause_s": 0.25, "new_request_s": 0.5, "replaced": [], "errors": []}
    counts = {"tokens_lost": 0, "tokens_changed": 0, "streams_failed": 0, "streams_struck": 32}
    return Result(fault=fault, **{**defaults, **counts, **options})


def report_of(results: list[Result], overhead: Overhead | None = None) -> Report:
    faults = [found.fault for found in results[1:]]
    settings = Settings(model="my[bold]", streams=32, tokens=48, faults=faults, hang_timeout=2, overhead=0)
    return Report(
        benchmark="recovery",
        machine={"cpu_count": 2},
        settings=settings,
        results=results,
        processes_seen=6,
        processes_left=1,
        overhead=overhead,
    )


def test_tables_show_figures(capsys: pytest.CaptureFixture[str]) -> None:
    replaced = ["worker0.0 killed", "core0 killed"]
    failed = {"new_request_s": None, "tokens_lost": 7, "tokens_changed": 3, "streams_failed": 2, "errors": ["[so]", "[so]"]}
    results = [result("none"), result("both", longest_pause_s=3.14159, replaced=replaced, streams_struck=31, **failed)]
    print_recovery_report(report_of(results))
    out = capsys.readouterr().out
    assert "32 streams of 48 tokens each, greedy and seeded by turns; model my[bold], hang_timeout 2 s." in out
    assert re.search(r"│ none +│ +0.25 │ +0.50 │ +32 │ +0 │ +0 │ +0 │ - +│\n", out)
    assert re.search(r"│ both +│ +3.14 │ +- │ +31 │ +2 │ +7 │ +3 │ worker0.0 killed, core0 killed +│\n", out)
    assert out.count("A request failed at both: [so]\n") == 1
    assert f"both: {FAULTS['both'].about}.\n" in out
    assert "Of 6 processes of the engine, 1 were left over after its end.\n" in out
    assert "max_restarts" not in out


def test_tables_show_what_restarts_cost(capsys: pytest.CaptureFixture[str]) -> None:
    overhead = Overhead(without_restarts=[100, 90, 80], with_restarts=[99, 81, 72], ratio=0.9)
    print_recovery_report(report_of([result("none")], overhead))
    out = capsys.readouterr().out
    assert re.search(r"│ max_restarts=0 +│ +90.0 │ 100.0 90.0 80.0 +│\n", out)
    assert re.search(r"│ its default +│ +81.0 │ 99.0 81.0 72.0 +│\n", out)
    assert re.search(r"│ ratio +│ +0.900 │", out)


def test_processes_that_are_left_are_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert _is_left(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert _is_left(process.pid)  # nobody has reaped it
    assert not _is_left(process.pid)
    assert not _is_left(os.getppid())  # alive, but none that we have started


def test_sigterm_unwinds_everything() -> None:
    unwound = []

    async def endless() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            unwound.append(True)

    with pytest.raises(SystemExit) as end:
        run_until_sigterm(endless())
    assert (end.value.code, unwound) == (143, [True])


def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> Settings:
    """What the command would measure."""
    given: list[Settings] = []

    async def measure(settings: Settings, folder: str, done: object) -> Report:
        given.append(settings)
        return report_of([result("none")])

    monkeypatch.setattr(command, "run_recovery_benchmark", measure)
    assert bench(capsys, *arguments)[0] == 0
    return given[0]


def test_what_is_measured_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    faults = ["worker", "core", "hang", "both"]
    default = Settings(model="smollm2", streams=32, tokens=48, faults=faults, hang_timeout=2, overhead=0)
    assert asked(monkeypatch, capsys) == default


@pytest.mark.parametrize("words", [["both,core,core"], ["both", "core,core"], ["both", "core", "core"]])
def test_faults_come_with_commas_or_spaces(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert asked(monkeypatch, capsys, "--faults", *words).faults == ["both", "core", "core"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--streams", "0"], "streams must be an integer of at least 1, got 0"),
        (["--tokens", "7"], f"tokens must be an integer of at least {2 * MARK}, got 7"),
        (["--overhead", "-1"], "overhead must be an integer of at least 0, got -1"),
        (["--faults", "core,flood"], "faults must be of worker, core, hang, both, got 'flood'"),
        (["--faults", ""], "faults must be of worker, core, hang, both, got ''"),
        (["--hang-timeout", "0"], r"hang_timeout must be a number above 0.*, got 0\.0"),
        (["--hang-timeout", "soon"], "--hang-timeout"),
        (["--model", "/no/such/model"], "model '/no/such/model' does not exist"),
        (["--repeat", "2"], "unrecognized arguments: --repeat"),
    ],
)
def test_a_mistake_is_one_line(
    no_leaks: None, temporary: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    code, out, err = bench(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert re.search(named, err)
    assert list(temporary.iterdir()) == []
