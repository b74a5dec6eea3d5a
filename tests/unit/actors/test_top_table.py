"""The tables of `ringpost top`."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from ringpost.actors.engine_view import ActorView, EngineView, MailboxView, Report, SideView
from ringpost.actors.top_table import report_tables

ACTOR = ActorView(
    name="core0",
    kind="engine_core",
    pid=1234567,
    alive=True,
    state="ready",
    epoch=1,
    steps=1_234_567,
    steps_per_second=312.4,
    last_step_age=0.01,
    message="StepResult 1234567",
    message_age=0.25,
    asks="worker0.0",
    running=3,
    waiting=1,
    used_blocks=40,
    num_blocks=100,
    preemptions=17,
    prefix_hit_rate=0.254,
    cpu_percent=12.3,
    rss_bytes=50_000_000,
)
SIDE = SideView(state="attached", epoch=1, parked=False, messages=9, waits=4, wait_share=0.5, lost_wakeups=0)
MAILBOX = MailboxView(
    name="requests[0,0].urgent",
    depth=2,
    used_bytes=1024,
    capacity_bytes=4096,
    messages_per_second=9.25,
    bytes_per_second=4100.0,
    writer=SIDE,
    readers=[SIDE],
)


def shown(actor: ActorView = ACTOR, mailbox: MailboxView = MAILBOX, width: int = 200, *, styled: bool = False) -> str:
    engine = EngineView(supervisor=77, pids=[77, 78], actors=[actor], mailboxes=[mailbox])
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=styled, color_system="standard" if styled else None)
    console.print(report_tables(Report(seconds=1.0, engines=[engine])))
    return output.getvalue()


def line(text: str, start: str) -> list[str]:
    (found,) = [line for line in text.splitlines() if line.startswith(start)]
    return found.split()


def test_everything_is_told() -> None:
    text = shown()
    assert text.startswith("engine of pid 77: processes 77, 78\n")
    actor, mailbox = (" ".join(line(text, name)) for name in ("core0", "requests"))
    assert actor == "core0 engine_core 1234567 ready 1 1234567 312 12 % 50 MB 3 1 40/100 StepResult 1234567 250 ms worker0.0"
    assert mailbox == "requests[0,0].urgent 2 25 % 9.2 4.1 kB 4 50 % 4 50 % 0"
    assert "\npreemptions by core0: 17; prompt tokens found in its prefix cache: 25 %\n" in text


def test_only_a_core_preempts_and_only_what_was_looked_up_has_a_rate() -> None:
    assert "preemptions by core0: 0; prompt tokens found in its prefix cache: -\n" in shown(
        replace(ACTOR, preemptions=0, prefix_hit_rate=None)
    )
    assert "preemptions" not in shown(replace(ACTOR, preemptions=None, prefix_hit_rate=None))


def test_what_is_not_known_is_a_dash() -> None:
    unknown = replace(
        ACTOR, steps_per_second=None, message="", message_age=None, asks="", running=None, waiting=None, num_blocks=None
    )
    text = shown(replace(unknown, cpu_percent=None, rss_bytes=None), replace(MAILBOX, messages_per_second=None))
    assert " ".join(line(text, "core0")) == "core0 engine_core 1234567 ready 1 1234567 - - - - - - - -"
    assert line(text, "requests")[4] == "-"


def test_a_dead_process_and_lost_wakeups_are_red() -> None:
    red = "\x1b[1;31m"
    assert red not in shown(styled=True)
    assert f"{red}gone" in shown(replace(ACTOR, alive=False), styled=True)
    assert f"{red}failed" in shown(replace(ACTOR, state="failed"), styled=True)
    lost = replace(MAILBOX, readers=[replace(SIDE, lost_wakeups=3)])
    assert f"{red}   3" in shown(mailbox=lost, styled=True)


def test_every_reader_has_a_line_and_absent_sides_are_named() -> None:
    readers = [replace(SIDE, waits=11, wait_share=1.0), replace(SIDE, waits=12, wait_share=None, state="gone")]
    text = shown(mailbox=replace(MAILBOX, writer=replace(SIDE, state="free"), readers=readers))
    lines = text.splitlines()
    (first,) = [number for number, content in enumerate(lines) if content.startswith("requests")]
    assert lines[first].endswith("11  100 %    0 writer free, reader 1 gone ")
    assert lines[first + 1].split() == ["12", "-"]
    alone = shown(mailbox=replace(MAILBOX, readers=[replace(SIDE, state="closed")]))
    assert "reader closed" in alone


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_shows_names_and_numbers_whole(width: int) -> None:
    text = shown(replace(ACTOR, steps=12345), replace(MAILBOX, name="from[worker0.0]"), width=width)
    assert max(map(len, text.splitlines())) <= width
    for whole in ("core0", "1234567", "ready", "12345", "312", "12 %", "50 MB", "from[worker0.0]", "9.2", "4.1 kB", "25 %"):
        assert whole in text


def test_names_reach_the_terminal_as_text_only() -> None:
    """Memory of another process is shown, not obeyed: neither as markup nor as commands."""
    text = shown(replace(ACTOR, name="\x1b[2J[red]x[/red]", message="\x07\n"), replace(MAILBOX, name="\x1bc"))
    assert "?[2J[red]x[/red]" in text
    assert not set("\x1b\x07") & set(text)
