"""The command line's mistakes: one line on standard error, exit code 2, nothing started."""

import re
from pathlib import Path

import pytest

import ringpost
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
        (["nonsense"], "nonsense"),
        (["--nonsense"], "COMMAND"),
        (["--nonsense", "complete", "hi"], "unrecognized arguments: --nonsense"),
        (["complete"], "PROMPT"),
        (["complete", "hi", "--no-such-option"], "unrecognized arguments: --no-such-option$"),
        (["complete", "hi", "--max-num-sequences=3"], r"did you mean --max-num-seqs\?"),
        (["complete", "hi", "--max-tokens", "many"], "--max-tokens"),
        (["complete", "hi", "--max-tokens", "0"], "max_tokens must be .*got 0"),
        (["complete", "hi", "--temperature", "3"], r"temperature must be .*got 3\.0"),
        (["complete", "hi", "--top-p", "nan"], "top_p must be .*got nan"),
        (["complete", "hi", "--max-num-seqs", "0"], "max_num_seqs must be an integer of at least 1, got '0'"),
        (["complete", "hi", "--dtype", "int3"], "dtype must be auto or bfloat16 or float32, got 'int3'"),
        (["complete", "hi", "--model", "/no/such/dir"], "/no/such/dir"),
        (["serve", "--port", "65536"], "port must be an integer of at least 0, at most 65535, got '65536'"),
        (["serve", "--port", "http"], "port must be .*got 'http'"),
        (["serve", "--host", "no host"], "host 'no host' cannot be used"),
        (["serve", "--max-num-seqs", "0"], "max_num_seqs must be an integer of at least 1, got '0'"),
        (["serve", "--served-model-name"], "--served-model-name"),
        (["serve", "--prot", "1"], r"did you mean --port\?"),
        (["serve", "--port", "0", "/no/such/dir"], "/no/such/dir"),
        (["serve", "one", "--model", "other"], "not allowed with"),
        (["chat", "hi", "--temperature", "3"], r"temperature must be .*got 3\.0"),
        (["chat", "hi", "--max-num-seqs", "0"], "max_num_seqs must be an integer of at least 1, got '0'"),
        (["chat", "hi", "--model", "/no/such/dir"], "/no/such/dir"),
        (["chat", "hi", "--url", "localhost"], "url must be like http://.*got 'localhost'"),
        (["chat", "hi", "--url", "http://localhost:1", "--block-size", "8"], "block_size: with --url"),
        (["chat", "hi", "--api-key", "secret"], "api_key is for a server"),
        (["top", "--interval", "0"], r"interval must be a number of seconds from 0\.1 to 3600, got 0\.0"),
        (["top", "--interval", "nan"], "interval must be .*got nan"),
        (["top", "--pid", "me"], "--pid"),
        (["postmortem"], "FILE"),
        (["postmortem", "/no/such/file"], "/no/such/file cannot be read: No such file"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str, no_leaks: None) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("ringpost")
    assert re.search(named, err)


COMMANDS = {
    "bench": ("BENCHMARK", "mailbox"),
    "serve": ("MODEL", "--port", "--served-model-name", "--api-key", "--max-num-seqs", "--no-async-scheduling"),
    "chat": ("MESSAGE", "--url", "--api-key", "--system-prompt", "--temperature", "--max-num-seqs"),
    "complete": ("PROMPT", "--chat", "--stats", "--temperature", "--max-num-seqs", "--log-format"),
    "top": ("--pid", "--interval", "--once", "--json"),
    "postmortem": ("FILE",),
}


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    assert set(COMMANDS) == set(re.findall(r"^    (\w+)(?: |$)", out, re.MULTILINE))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, err = run(capsys, command, "--help")
    assert (code, err) == (0, "")
    assert all(option in out for option in COMMANDS[command])


def test_no_command_at_all_is_a_mistake_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert all(command in err for command in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert re.fullmatch(r"ringpost \d+\.\d+\.\d+\S*\n", out)
    assert out == f"ringpost {ringpost.__version__}\n"


def test_a_broken_model_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{\n\n")
    code, _, err = run(capsys, "complete", "hi", "--model", str(tmp_path))
    assert code == 2
    assert err.count("\n") == 1
    assert "config.json" in err
