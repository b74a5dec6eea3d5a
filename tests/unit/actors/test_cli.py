"""The command line's mistakes: one line on standard error, exit code 2, nothing started."""

import re
from pathlib import Path

import pytest

from ringpost.actors.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "COMMAND"),
        (["nonsense"], "nonsense"),
        (["complete"], "PROMPT"),
        (["complete", "hi", "--no-such-option"], "--no-such-option"),
        (["complete", "hi", "--max-tokens", "many"], "--max-tokens"),
        (["complete", "hi", "--max-tokens", "0"], "max_tokens must be .*got 0"),
        (["complete", "hi", "--temperature", "3"], r"temperature must be .*got 3\.0"),
        (["complete", "hi", "--top-p", "nan"], "top_p must be .*got nan"),
        (["complete", "hi", "--max-num-seqs", "0"], "max_num_seqs must be an integer of at least 1, got '0'"),
        (["complete", "hi", "--dtype", "int3"], "dtype must be auto or bfloat16 or float32, got 'int3'"),
        (["complete", "hi", "--model", "/no/such/dir"], "/no/such/dir"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str, no_leaks: None) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("ringpost")
    assert re.search(named, err)


def test_help_names_every_command_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    assert "complete" in out
    code, out, err = run(capsys, "complete", "--help")
    assert (code, err) == (0, "")
    for option in ("--temperature", "--chat", "--max-num-seqs", "--log-format"):
        assert option in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert re.fullmatch(r"ringpost \d+\.\d+\.\d+\S*\n", out)


def test_a_broken_model_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{\n\n")
    code, _, err = run(capsys, "complete", "hi", "--model", str(tmp_path))
    assert code == 2
    assert err.count("\n") == 1
    assert "config.json" in err
