"""`ringpost bench mailbox`: its messages and measurements with tiny times, its report, and its mistakes."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec
import pytest

from ringpost.actors.benchmarks.driver import Job
from ringpost.actors.benchmarks.launch import BenchmarkError, measure
from ringpost.actors.benchmarks.mailbox import Report, Settings, plan
from ringpost.actors.benchmarks.measurements import MEASUREMENTS, Case, run_hub
from ringpost.actors.benchmarks.messages import LARGE, SIZES, BenchmarkMessage, Image, Ready, Received, decode, encode, sample
from ringpost.actors.benchmarks.transport import TRANSPORTS
from ringpost.actors.cli import main

SECONDS = 0.01
BOTH = ("--measurements", "parked", "--transports", "ringpost", "zmq")


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(["bench", "mailbox", "--seconds", str(SECONDS), "--sizes", "20B", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("size", SIZES.values())
def test_a_sample_has_its_size_and_survives_the_codec(size: int) -> None:
    message = sample(size)
    if size >= LARGE:
        assert isinstance(message, Image)
        assert len(message.data) == size
    else:
        assert len(encode(message)) == size
    assert decode(encode(message)) == message


def settings(measurements: Sequence[str] = tuple(MEASUREMENTS), transports: Sequence[str] = tuple(TRANSPORTS)) -> Settings:
    return Settings(seconds=1, repeat=1, measurements=list(measurements), transports=list(transports), sizes=["20B", "1MB"])


def test_transports_take_turns() -> None:
    assert plan(settings(["echo"], ["zmq", "ringpost"])) == [
        ("echo", "20B", "zmq"),
        ("echo", "20B", "ringpost"),
        ("echo", "1MB", "zmq"),
        ("echo", "1MB", "ringpost"),
    ]


def test_only_what_can_poll_is_measured_polling() -> None:
    assert {transport for _, _, transport in plan(settings(["spinning"]))} == {"ringpost", "zmq", "pipe"}
    assert {transport for _, _, transport in plan(settings(["parked"]))} == set(TRANSPORTS)


@pytest.mark.parametrize(("measurement", "size", "transport"), plan(settings()))
def test_every_transport_can_be_measured(no_leaks: None, tmp_path: Path, measurement: str, size: str, transport: str) -> None:
    figures = measure(Job(transport, measurement, SIZES[size], SECONDS, str(tmp_path)))
    expected = ["median_us", "p99_us"] if measurement in {"parked", "spinning"} else ["messages_per_second"]
    assert list(figures) == expected
    assert all(value > 0 for value in figures.values())
    assert figures.get("median_us", 0) <= figures.get("p99_us", 0)


class LossyHub:
    """Peers of which one answers as if the first message of the whole broadcast had not reached it."""

    def __init__(self, peers: int) -> None:
        self.sent = 0
        self.received = [-1, *[0] * (peers - 1)]
        self.ahead = 0

    async def send(self, messages: Sequence[BenchmarkMessage]) -> None:
        self.sent += len(messages)
        self.ahead = max(self.ahead, self.sent - max(self.received))

    async def receive(self) -> list[BenchmarkMessage]:
        if not self.sent:
            return [Ready(peer) for peer in range(len(self.received))]
        if self.received[0] == self.sent - 1:
            raise EOFError("no answer is left")
        self.received = [self.sent - 1, *[self.sent] * (len(self.received) - 1)]
        return [Received(peer, count) for peer, count in enumerate(self.received)]

    def close(self) -> None:
        raise AssertionError("not the measurement's to close")


@pytest.mark.asyncio
async def test_a_broadcast_waits_for_what_is_lost_and_is_never_far_ahead() -> None:
    hub, case = LossyHub(4), Case(sample(20), 20, SECONDS, 0, 4)
    with pytest.raises(EOFError):
        await run_hub(MEASUREMENTS["broadcast"], hub, case)
    assert case.chunk < hub.ahead <= 4 * case.chunk


def test_a_failure_names_the_measurement_and_the_reason(no_leaks: None, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    with pytest.raises(BenchmarkError, match=r"parked of 20 bytes through zmq\.asyncio: .*No such file or directory"):
        measure(Job("zmq", "parked", 20, SECONDS, str(absent)))


def test_json_is_one_object_with_everything(no_leaks: None, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "--json", "--repeat", "2", *BOTH)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out).keys() == {"benchmark", "machine", "settings", "left_out", "results", "ratios"}
    report = msgspec.json.decode(out, type=Report)
    assert report.benchmark == "mailbox"
    assert {"cpu_count", "load_average", "machine", "system"} < report.machine.keys()
    assert {"python", "ringpost", "msgspec", "uvloop", "pyzmq"} < report.machine.keys()
    assert report.settings.repeat == 2
    assert report.left_out == {}
    ours, theirs = report.results
    assert (ours.transport, theirs.transport) == ("ringpost", "zmq")
    for result in report.results:
        assert (result.measurement, result.size, len(result.repeats)) == ("parked", 20, 2)
        assert result.figures == {name: median(repeat[name] for repeat in result.repeats) for name in result.figures}
    (ratio,) = report.ratios
    assert (ratio.measurement, ratio.size, ratio.figure) == ("parked", 20, "median_us")
    assert ratio.ratio == ours.figures["median_us"] / theirs.figures["median_us"]


def test_tables_show_figures_and_ratios(no_leaks: None, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "--repeat", "1", *BOTH)
    assert (code, err) == (0, "")
    assert "Round trip, sleeping while it waits" in out
    assert "Ringpost / zmq.asyncio" in out
    assert re.search(r"│ 20B +(│ +[\d.,]+ / [\d.,]+ ){2}│ +\d+\.\d\d │", out)
    assert "zmq.asyncio: PAIR" in out


@pytest.fixture
def without_pyzmq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)


LEFT_OUT = 'zmq.asyncio is left out: pyzmq is not installed; pip install "ringpost[bench]"'


@pytest.mark.usefixtures("without_pyzmq")
def test_without_pyzmq_the_others_are_measured(no_leaks: None, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "--repeat", "1", *BOTH)
    assert (code, err) == (0, "")
    assert out.startswith(f"{LEFT_OUT}\n")
    assert re.search(r"│ 20B +│ +[\d.,]+ / [\d.,]+ │\n", out)
    assert "Ringpost / zmq.asyncio" not in out


@pytest.mark.usefixtures("without_pyzmq")
def test_without_pyzmq_the_json_says_so(no_leaks: None, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, "--json", "--repeat", "1", *BOTH)
    report = msgspec.json.decode(out, type=Report)
    assert (code, err, report.left_out, report.ratios) == (0, "", {"zmq": LEFT_OUT}, [])
    assert [result.transport for result in report.results] == ["ringpost"]


@pytest.mark.usefixtures("without_pyzmq")
def test_nothing_but_what_is_not_installed_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(capsys, "--transports", "zmq") == (2, "", f"ringpost bench: {LEFT_OUT}\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--repeat", "0"], "repeat must be an integer of at least 1, got 0"),
        (["--repeat", "many"], "--repeat"),
        (["--seconds", "0"], "seconds must be a number above 0, got 0"),
        (["--seconds", "nan"], "seconds must be a number above 0, got nan"),
        (["--seconds", "inf"], "seconds must be a number above 0, got inf"),
        (["--transports", "tcp"], "--transports.*'tcp'.*'ringpost'"),
        (["--sizes", "2B"], "--sizes.*'2B'.*'20B'"),
        (["--measurements", "spinning", "--transports", "queue"], "can poll"),
        (["--jsn"], r"unrecognized arguments: --jsn; did you mean --json\?"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    code, out, err = bench(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert re.search(named, err)


def test_a_benchmark_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench"])
    assert "BENCHMARK" in capsys.readouterr().err
