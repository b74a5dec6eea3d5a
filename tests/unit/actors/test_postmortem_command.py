"""`ringpost postmortem`: what a person sees of a file."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from postmortems import PLANS, POSTMORTEM

from ringpost.actors.cli import main
from ringpost.actors.postmortem_file import Postmortem, write_postmortem


def shown(capsys: pytest.CaptureFixture[str], tmp_path: Path, postmortem: Postmortem = POSTMORTEM) -> list[str]:
    path = write_postmortem(postmortem, tmp_path)
    assert main(["postmortem", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return [line.rstrip() for line in captured.out.splitlines()]


def test_everything_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert shown(capsys, tmp_path) == [
        "worker0.0 (worker), pid 4711, epoch 2",
        "found dead at 2026-11-30T10:25:30+00:00; Ringpost 0.1.0",
        "MemoryError: no room",
        "",
        "the status it posted last",
        "actor='worker0.0' state='ready' steps=0 since='0.500 s ago' message='StepPlan 7'",
        "",
        "what it said of its failure",
        "Traceback:",
        "        at one",
        "MemoryError: no room",
        "",
        "the lines it printed last",
        "loading ?[2J?",
        "[red]loaded[/red]",
        "",
        "MAILBOX     CAPACITY UNREAD WRITER                                 READERS",
        "plans[0] in     4096      1 attached, epoch 1, 2 messages, waiting gone, epoch 1, 1 messages",
        "",
        "last messages from plans[0]; * is unread",
        "  1.0 (it does not decode: 77 bytes)",
        "* 1.1 StepPlan step=7 new=[(row=0 tokens=<37 token ids>)] rows=[0, 1, 2, 3, 4, 5, 6, 7, ... 30 in all]",
    ]


def test_what_is_not_there_has_no_heading(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    failure = {"kind": "ProcessDied", "message": "killed by signal 9", "traceback": ""}
    bare = replace(POSTMORTEM, status=None, tail=[], mailboxes=[], failure=failure)
    assert shown(capsys, tmp_path, bare) == [
        "worker0.0 (worker), pid 4711, epoch 2",
        "found dead at 2026-11-30T10:25:30+00:00; Ringpost 0.1.0",
        "ProcessDied: killed by signal 9",
    ]


def test_names_and_texts_reach_the_terminal_as_text_only(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The file is shown, not obeyed: neither as markup nor as commands."""
    evil = "\x1b[2J\x07\r[red]x[/red]"
    message = replace(PLANS.messages[1], type=evil, fields={evil: evil, "list": [evil], "hidden": f"<{evil}>"})
    mailbox = replace(PLANS, name=evil, writer=replace(PLANS.writer, state=evil), messages=[message])
    failure = dict.fromkeys(("kind", "message", "traceback"), evil)
    lines = shown(
        capsys,
        tmp_path,
        replace(POSTMORTEM, kind=evil, ringpost=evil, failure=failure, status={evil: evil}, mailboxes=[mailbox]),
    )
    assert not set("\x1b\x07\r") & set("".join(lines))
    assert sum("[red]x[/red]" in line for line in lines) >= 8


def test_the_newest_of_a_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_postmortem(POSTMORTEM, tmp_path)
    write_postmortem(replace(POSTMORTEM, time="2027-01-01T00:00:00+00:00", pid=12), tmp_path)
    assert main(["postmortem", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("worker0.0 (worker), pid 12, ")
