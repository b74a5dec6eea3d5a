"""`ringpost bench perplexity` on a tiny model: its report, its table, and its mistakes."""

import math
from pathlib import Path

import msgspec
import pytest

from ringpost.actors.benchmarks.perplexity import Report, Settings
from ringpost.actors.cli import main

VOCABULARY = 268


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(["bench", "perplexity", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def text(tmp_path: Path) -> str:
    file = tmp_path / "text.txt"
    file.write_text("The hen and the other one are in there.\n\n" * 20)
    return str(file)


def test_each_quantisation_is_measured(no_leaks: None, tiny: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, text, "--model", tiny, "--window", "64", "--ignore", "lm_head", "--json")
    assert (code, err) == (0, "")
    report = msgspec.json.decode(out, type=Report)
    names = ["none", "int8", "int4"]
    assert report.settings == Settings(model=tiny, dtype="auto", quantizations=names, ignore=["lm_head"], window=64)
    assert [one.quantization for one in report.results] == names
    for one in report.results:
        assert one.tokens == report.results[0].tokens > 400
        assert one.perplexity == pytest.approx(math.exp(one.nats))
        assert one.nats == pytest.approx(math.log(VOCABULARY), rel=0.2), "random weights foretell nothing"
    assert len({one.nats for one in report.results}) == 3


def test_the_table(no_leaks: None, tiny: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = bench(capsys, text, "--model", tiny, "--window", "64", "--quantizations", "int8")
    assert code == 0
    assert "int8" in out
    assert "int4" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.txt"], "no such file: nowhere.txt\n"),
        (["nowhere.txt", "--window", "1"], "window must be an integer of at least 2, got 1"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bench(capsys, *arguments)
    assert (code != 0, out) == (True, "")
    assert message in err


def test_a_text_that_is_too_short(no_leaks: None, tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").write_text("")
    code, _, err = bench(capsys, str(tmp_path / "one"), "--model", tiny)
    assert code != 0
    assert "must have at least 2 tokens" in err
