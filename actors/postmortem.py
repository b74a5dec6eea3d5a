"""`ringpost postmortem`: what was written down about a process that died, for people to read."""

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..ipc.ring_view import SideReading
from .postmortem_file import MailboxPart, MessagePart, Postmortem, read_postmortem

_WIDE = 240  # columns where no terminal sets a limit
_ITEMS = 8  # of a longer list
_COLUMNS = ("MAILBOX", "", "CAPACITY", "UNREAD", "WRITER", "READERS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("file", metavar="FILE", type=Path, help="a file that the log names, or a directory: its newest one")


def run(arguments: argparse.Namespace) -> int:
    """Body of the command; returns its exit code. Raises ValueError for a file that is no post-mortem."""
    postmortem = read_postmortem(arguments.file)
    console = Console(width=None if sys.stdout.isatty() else _WIDE, soft_wrap=True)
    console.print(report(postmortem))
    return 0


def report(postmortem: Postmortem) -> RenderableType:
    """The whole of it."""
    failure = postmortem.failure
    parts: list[RenderableType] = [
        _heading(f"{postmortem.actor} ({postmortem.kind}), pid {postmortem.pid}, epoch {postmortem.epoch}"),
        _text(f"found dead at {postmortem.time}; Ringpost {postmortem.ringpost}"),
        _text(f"{failure.get('kind')}: {failure.get('message')}", "bold red"),
        *_section("the status it posted last", _status_lines(postmortem)),
        *_section("what it said of its failure", failure.get("traceback", "").splitlines()),
        *_section("the lines it printed last", postmortem.tail),
    ]
    if postmortem.mailboxes:
        parts += [Text(), _mailbox_table(postmortem.mailboxes)]
    for mailbox in postmortem.mailboxes:
        parts += _section(
            f"last messages {'from' if mailbox.direction == 'in' else 'into'} {mailbox.name}; * is unread",
            [_message_line(message) for message in mailbox.messages],
        )
    return Group(*parts)


def _section(title: str, lines: list[str]) -> list[RenderableType]:
    """An empty line, a heading and the lines; nothing where there are none."""
    return [Text(), _heading(title), *map(_text, lines)] if lines else []


def _heading(content: str) -> Text:
    return _text(content, "bold")


def _text(content: str, style: str = "") -> Text:
    """Text that cannot reach the terminal as commands."""
    return Text("".join(char if char.isprintable() or char == "\n" else "?" for char in content.expandtabs()), style)


def _status_lines(postmortem: Postmortem) -> list[str]:
    """One line, with times as ages; none where there is no status."""
    status = dict(postmortem.status or {})
    for name in ("progress", "since"):
        if isinstance(moment := status.get(name), int | float):
            status[name] = f"{postmortem.clock - moment:.3f} s ago" if moment else ""
    return [_pairs(status)] if status else []


def _mailbox_table(mailboxes: list[MailboxPart]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in ("CAPACITY", "UNREAD") else "left")
    for mailbox in mailboxes:
        readers = "\n".join(map(_side, mailbox.readers))
        cells = (mailbox.name, mailbox.direction, str(mailbox.capacity), str(mailbox.unread), _side(mailbox.writer), readers)
        table.add_row(*map(_text, cells))
    return table


def _side(side: SideReading) -> str:
    waiting = ", waiting" if side.parked else ""
    return f"{side.state}, epoch {side.epoch}, {side.messages} messages{waiting}"


def _message_line(message: MessagePart) -> str:
    what = f"{message.type} {_pairs(message.fields)}" if message.type else f"({message.problem}: {message.size} bytes)"
    return f"{'*' if message.unread else ' '} {message.epoch}.{message.sequence} {what}".rstrip()


def _pairs(fields: dict[str, Any]) -> str:
    """On one line, what is more than the absence of something."""
    return " ".join(f"{name}={_brief(value)}" for name, value in fields.items() if value or type(value) in (int, float))


def _brief(value: Any) -> str:
    """On one line; of a long list only the first items."""
    match value:
        case dict():
            return f"({_pairs(value)})"
        case list():
            rest = [f"... {len(value)} in all"] if len(value) > _ITEMS else []
            return f"[{', '.join([*map(_brief, value[:_ITEMS]), *rest])}]"
        case str() if not (value.startswith("<") and value.endswith(">")):
            return repr(value)
        case _:
            return str(value)
