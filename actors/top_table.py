"""Tables for `ringpost top`: what a report of the engines looks like in a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .engine_view import ActorView, EngineView, MailboxView, Report, SideView

_NONE = "-"
_ALARM = "bold red"
_LEFT = {"ACTOR", "KIND", "STATE", "IN HAND", "ASKS", "MAILBOX", "SIDES"}
_MAY_WRAP = {"KIND", "BLOCKS", "IN HAND", "ASKS", "SIDES"}  # where the terminal is narrow; the rest fits 80 columns
_ACTOR_COLUMNS = (
    *("ACTOR", "KIND", "PID", "STATE", "EP.", "STEPS", "/S", "CPU", "RSS"),
    *("RUN", "WAIT", "BLOCKS", "IN HAND", "ASKS"),
)
_MAILBOX_COLUMNS = (
    *("MAILBOX", "DEPTH", "USED", "MSG/S", "BYTES/S"),
    *("WRITER\nWAITS", "WRITER\nBLOCKED", "READER\nWAITS", "READER\nIDLE", "LOST", "SIDES"),
)
_UNITS = ("", "k", "M", "G", "T")


def report_tables(report: Report) -> RenderableType:
    """Every engine of the report, one under the other."""
    return Group(*(table for engine in report.engines for table in _engine(engine)))


def _engine(engine: EngineView) -> list[RenderableType]:
    who = f"engine of pid {engine.supervisor}" if engine.supervisor else "engine"
    title = Text(f"{who}: processes {', '.join(map(str, engine.pids))}", style="bold")
    actors, mailboxes = _table(_ACTOR_COLUMNS), _table(_MAILBOX_COLUMNS)
    for actor in engine.actors:
        actors.add_row(*_actor_cells(actor))
    for mailbox in engine.mailboxes:
        mailboxes.add_row(*_mailbox_cells(mailbox))
    cores = [_core_line(actor) for actor in engine.actors if actor.preemptions is not None]
    return [title, *cores, *([actors] if engine.actors else []), mailboxes, Text()]


def _core_line(core: ActorView) -> Text:
    found = _percent(core.prefix_hit_rate)
    return _text(f"preemptions by {core.name}: {core.preemptions}; prompt tokens found in its prefix cache: {found}")


def _table(columns: tuple[str, ...]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for name in columns:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=name not in _MAY_WRAP)
    return table


def _actor_cells(actor: ActorView) -> list[Text]:
    state = _text(actor.state if actor.alive else "gone", _ALARM if not actor.alive or actor.state == "failed" else "")
    in_hand = actor.message if actor.message_age is None else f"{actor.message} {_seconds(actor.message_age)}"
    blocks = _NONE if actor.num_blocks is None else f"{actor.used_blocks}/{actor.num_blocks}"
    return [
        _text(actor.name),
        _text(actor.kind),
        _text(str(actor.pid)),
        state,
        _text(str(actor.epoch)),
        _text(str(actor.steps)),
        _text(_number(actor.steps_per_second)),
        _text(_NONE if actor.cpu_percent is None else f"{actor.cpu_percent:.0f} %"),
        _text(_number(actor.rss_bytes, "B")),
        _text(_NONE if actor.running is None else str(actor.running)),
        _text(_NONE if actor.waiting is None else str(actor.waiting)),
        _text(blocks),
        _text(in_hand or _NONE),
        _text(actor.asks or _NONE),
    ]


def _mailbox_cells(mailbox: MailboxView) -> list[Text]:
    """Cells about readers have a line for each."""
    sides = [mailbox.writer, *mailbox.readers]
    lost = sum(side.lost_wakeups for side in sides)
    absent = [_absence("writer", mailbox.writer)]
    absent += [
        _absence("reader" if len(mailbox.readers) == 1 else f"reader {slot}", reader)
        for slot, reader in enumerate(mailbox.readers)
    ]
    return [
        _text(mailbox.name),
        _text(str(mailbox.depth)),
        _text(f"{100 * mailbox.used_bytes / max(1, mailbox.capacity_bytes):.0f} %"),
        _text(_number(mailbox.messages_per_second)),
        _text(_number(mailbox.bytes_per_second, "B")),
        _text(str(mailbox.writer.waits)),
        _text(_percent(mailbox.writer.wait_share)),
        _text("\n".join(str(reader.waits) for reader in mailbox.readers)),
        _text("\n".join(_percent(reader.wait_share) for reader in mailbox.readers)),
        _text(str(lost), _ALARM if lost else ""),
        _text(", ".join(filter(None, absent))),
    ]


def _absence(name: str, side: SideView) -> str:
    return "" if side.state == "attached" else f"{name} {side.state}"


def _text(content: str, style: str = "") -> Text:
    """A cell. Names come from the memory of other processes, which must not reach the terminal as commands."""
    return Text("".join(char if char.isprintable() or char == "\n" else "?" for char in content), style)


def _number(value: float | None, unit: str = "") -> str:
    """Three digits or so: 0, 9.5, 312, 4.1 k, 12 MB."""
    if value is None:
        return _NONE
    scale = 0
    while value >= 1000 and scale < len(_UNITS) - 1:
        value, scale = value / 1000, scale + 1
    digits = f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}"
    return f"{digits} {_UNITS[scale]}{unit}".rstrip()


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:.0f} %"


def _seconds(age: float) -> str:
    return f"{age * 1000:.0f} ms" if age < 1 else f"{age:.1f} s"
