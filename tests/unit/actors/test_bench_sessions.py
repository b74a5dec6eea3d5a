"""`ringpost bench sessions` on a tiny model: its report, its tables, and its mistakes."""

import json
import re
from typing import NoReturn

import msgspec
import pytest

from ringpost.actors import bench as command
from ringpost.actors.benchmarks import sessions_talk
from ringpost.actors.benchmarks.sessions_report import Growth, Idle, Interruptions, Report, Settings, Spread
from ringpost.actors.benchmarks.sessions_tables import print_sessions_report
from ringpost.actors.benchmarks.sessions_talk import rounds
from ringpost.actors.cli import main
from ringpost.actors.errors import EngineGenerateError
from ringpost.actors.frontend.async_llm import AsyncLLM


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(["bench", "sessions", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_everything_is_measured(no_leaks: None, tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"streams": 2, "turns": 12, "chunks": 4, "idle": 12, "idle_kv": 3}
    options = [word for name, count in counts.items() for word in (f"--{name.replace('_', '-')}", str(count))]
    code, out, err = bench(capsys, "--model", tiny, *options, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out).keys() == set(Report.__struct_fields__)
    report = msgspec.json.decode(out, type=Report)
    assert report.settings == Settings(model=tiny, **counts)
    for spread in (report.interruptions.silence, report.interruptions.first_token):
        assert 0 < spread.p50 <= spread.p99 <= spread.longest
    assert report.interruptions.silence.p50 < report.interruptions.first_token.p50, "no step is needed for it"
    assert [growth.streams for growth in report.growth] == [0, 2]
    for growth in report.growth:
        assert len(growth.first_token) == 4
        assert growth.first_median == pytest.approx(sum(growth.first_token[:2]) / 2)
        assert growth.last_median == pytest.approx(sum(growth.first_token[2:]) / 2)
        assert growth.ratio == pytest.approx(growth.last_median / growth.first_median)
    idle = report.idle
    assert (idle.answered, idle.num_blocks, idle.used_blocks) == (12, 20, 20)
    assert idle.evicted == 12 - 4
    assert idle.longest_first_token > 0


def test_spreads_and_rounds() -> None:
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)
    assert Spread.of([float(number) for number in range(200, 0, -1)]) == Spread(100.0, 198.0, 200.0)
    assert (rounds(1), rounds(10), rounds(23)) == ([1], [10], [10, 10, 3])


def test_tables_show_figures(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(
        benchmark="sessions",
        machine={"cpu_count": 2},
        settings=Settings(model="my[bold]", streams=16, turns=70, chunks=50, idle=500, idle_kv=50),
        interruptions=Interruptions(silence=Spread(0.001, 0.002, 0.003), first_token=Spread(0.1, 0.2, 0.31)),
        growth=[
            Growth(streams=0, first_token=[], first_median=0.05, last_median=0.06, ratio=1.2),
            Growth(streams=16, first_token=[], first_median=0.15, last_median=0.15, ratio=1),
        ],
        idle=Idle(
            answered=499,
            longest_first_token=0.5,
            num_blocks=255,
            used_blocks=250,
            evicted=450,
            frontend_bytes=4321,
            core_bytes=1234,
        ),
    )
    print_sessions_report(report)
    out = capsys.readouterr().out
    assert "Model my[bold], 16 streams beside." in out
    assert "70 answers interrupted (ms)" in out
    assert re.search(r"│ silence +│ +1.00 │ +2.00 │ +3.00 │\n", out)
    assert re.search(r"│ first token +│ +100.00 │ +200.00 │ +310.00 │\n", out)
    assert re.search(r"│ 0 +│ +50.0 │ +60.0 │ +1.20 │\n│ 16 +│ +150.0 │ +150.0 │ +1.00 │\n", out)
    for figure in ("499", "500.0", "250 of 255", "450", "4.3", "1.2"):
        assert re.search(rf" │ +{figure} │\n", out)


@pytest.mark.parametrize("tokens", [2, 4])
def test_an_answer_that_ends_too_early_is_told(
    no_leaks: None, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tokens: int
) -> None:
    """With fewer tokens than an answer has when it is interrupted, and with just as many."""
    monkeypatch.setattr(sessions_talk, "_STREAM_TOKENS", tokens)
    code, out, err = bench(capsys, "--model", tiny, "--streams", "0", "--turns", "1", "--chunks", "2", "--idle", "1")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"ringpost bench: .*answer.* ended .*'length'\n", err)


def failing_generate(self: AsyncLLM, *_: object) -> NoReturn:
    raise EngineGenerateError("it fails")


def test_a_stream_that_fails_ends_it(
    no_leaks: None, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AsyncLLM, "generate", failing_generate)
    code, out, err = bench(capsys, "--model", tiny, "--streams", "1", "--chunks", "2", "--idle", "1")
    assert (code, out, err) == (1, "", "ringpost bench: it fails\n")


def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Settings:
    """What the command would measure without options."""
    given: list[Settings] = []

    async def measure(settings: Settings, done: object) -> Settings:
        given.append(settings)
        return settings

    monkeypatch.setattr(command, "run_sessions_benchmark", measure)
    assert bench(capsys, "--json")[0] == 0
    return given[0]


def test_what_is_measured_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    default = Settings(model="smollm2", streams=16, turns=100, chunks=50, idle=500, idle_kv=50)
    assert asked(monkeypatch, capsys) == default


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--streams", "-1"], "streams must be an integer of at least 0, got -1"),
        (["--turns", "0"], "turns must be an integer of at least 1, got 0"),
        (["--chunks", "1"], "chunks must be an integer of at least 2, got 1"),
        (["--idle", "0"], "idle must be an integer of at least 1, got 0"),
        (["--idle-kv", "0"], "idle_kv must be an integer of at least 1, got 0"),
        (["--model", "/no/such/model"], "model '/no/such/model' does not exist"),
    ],
)
def test_a_mistake_is_one_line(no_leaks: None, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    code, out, err = bench(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert re.search(named, err)


def test_more_chunks_than_fit_are_refused(no_leaks: None, tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "--model", tiny, "--chunks", "40")
    assert (code, out) == (2, "")
    assert "chunks must be at most 29 with this model, got 40" in err
