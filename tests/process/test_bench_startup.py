"""`ringpost bench startup`: servers that it starts, what it says of them, and that it leaves none behind."""

import json
import os
import re
import signal
import socket
import subprocess

import msgspec
import pytest
from process_tree import actor_pids, all_end, child_pids
from programs import COMMAND, LIMIT

from ringpost.actors import bench as command
from ringpost.actors.benchmarks import startup_server
from ringpost.actors.benchmarks.launch import BenchmarkError
from ringpost.actors.benchmarks.startup import Report, Settings
from ringpost.actors.benchmarks.startup_server import Start, Usage
from ringpost.actors.benchmarks.startup_table import print_startup_report
from ringpost.actors.cli import main


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["bench", "startup", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_everything_is_measured(no_leaks: None, tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "--model", tiny, "--repeats", "1", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out).keys() == set(Report.__struct_fields__)
    report = msgspec.json.decode(out, type=Report)
    assert report.settings == Settings(model=tiny, repeats=1)
    (start,) = report.starts
    assert report.healthy_median == start.healthy
    assert start.answered > 0
    phases = start.phases
    assert {actor: list(found) for actor, found in phases.items()} == {
        "frontend0": ["exec", "model", "processes", "tokenizer", "wait for processes", "HTTP and templates, meanwhile"],
        "core0": ["exec", "wait for workers", "ready"],
        "worker0.0": ["exec", "import", "load", "ready"],
    }
    assert all(seconds >= 0 for found in phases.values() for seconds in found.values())
    worker, core = phases["worker0.0"], phases["core0"]
    assert worker["import"] + worker["load"] < worker["ready"] <= core["ready"] < start.healthy
    assert start.usage.keys() == phases.keys()
    for used in start.usage.values():
        assert used.cpu_seconds > 0
        assert 1 << 20 < used.pss < used.peak_rss


def test_a_wrong_model_is_the_users_mistake(no_leaks: None, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "--model", "/no/such/model")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"ringpost bench: model '/no/such/model' does not exist.*\n", err)


def test_a_server_that_refuses_is_told_and_stopped(
    no_leaks: None, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(startup_server, "_QUESTION", {"prompt": "a", "max_tokens": -1})
    code, out, err = bench(capsys, "--model", tiny)
    assert (code, out) == (1, "")
    assert re.fullmatch(r"ringpost bench: POST /v1/completions: status 400, .*max_tokens.*\n", err)


def test_a_server_that_does_not_answer() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(BenchmarkError, match=r"GET /health: .*refused"):
            startup_server._ask(f"127.0.0.1:{port}", "GET", "/health")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_everything(no_leaks: None, tiny: str, number: int, code: int) -> None:
    command_line = [COMMAND, "bench", "startup", "--model", tiny]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        while not (pids := [pid for server in child_pids(process.pid) for pid in (server, *actor_pids(server).values())][1:]):
            assert process.poll() is None
        with all_end([*child_pids(process.pid), *pids]):
            process.send_signal(number)
            output, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, output, errors) == (code, "", "")


def start(healthy: float, load: float, pss: int) -> Start:
    usage = {"frontend0": Usage(1.5, 100 << 20, 200 << 20), "worker0.0": Usage(2.25, pss << 20, 900 << 20)}
    return Start(healthy=healthy, answered=0.25, phases={"worker0.0": {"load": load}}, usage=usage)


def test_tables_show_figures(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(
        benchmark="startup",
        machine={"cpu_count": 2},
        settings=Settings(model="my[bold]", repeats=3),
        healthy_median=2.5,
        starts=[start(2.5, 0.5, 700), start(3, 0.75, 710), start(2, 0.4, 690)],
    )
    print_startup_report(report)
    out = capsys.readouterr().out
    assert "Model my[bold], medians of 3 starts with warm caches." in out
    assert "Healthy after 2.50 s (2.50, 3.00, 2.00).\nAnswered 0.25 s later.\n" in out
    assert re.search(r"│ worker0.0 +│ load +│ +0.50 │ +0.75 │\n", out)
    assert re.search(r"│ worker0.0 +│ +2.25 │ +700 │ +900 │\n", out)
    assert re.search(r"│ all +│ +3.75 │ +800 │ +1,100 │\n", out)


def test_what_is_measured_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given: list[Settings] = []

    def measure(settings: Settings, done: object) -> Settings:
        given.append(settings)
        return settings

    monkeypatch.setattr(command, "run_startup_benchmark", measure)
    assert bench(capsys, "--json")[0] == 0
    assert given == [Settings(model="smollm2", repeats=5)]
    code, out, err = bench(capsys, "--repeats", "0")
    assert (code, out, err) == (2, "", "ringpost bench: repeats must be an integer of at least 1, got 0\n")
