"""The report on sessions as tables for the terminal."""

from rich.table import Table

from .report import open_report
from .sessions_report import CHUNK_TOKENS, Growth, Idle, Interruptions, Report, Settings

_LEGEND = f"""\
Silence: from interrupt() to the last output of the old answer. First token: from append() of the next chunk.
A chunk has {CHUNK_TOKENS} tokens. There is no prefix cache."""


def print_sessions_report(report: Report) -> None:
    """Print it to standard output."""
    console, settings = open_report(report.machine), report.settings
    console.print(f"Model {settings.model}, {settings.streams} streams beside.\n", markup=False)
    console.print(_interruptions(settings, report.interruptions))
    console.print(_growth(settings, report.growth))
    console.print(_idle(settings, report.idle))
    console.print(_LEGEND)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right" if table.columns else "left")
    return table


def _interruptions(settings: Settings, found: Interruptions) -> Table:
    table = _table(f"{settings.turns} answers interrupted (ms)", "", "p50", "p99", "longest")
    for name, spread in (("silence", found.silence), ("first token", found.first_token)):
        table.add_row(name, *(f"{1000 * seconds:.2f}" for seconds in (spread.p50, spread.p99, spread.longest)))
    return table


def _growth(settings: Settings, found: list[Growth]) -> Table:
    title = f"First token of each of {settings.chunks} chunks of one session (ms)"
    table = _table(title, "streams beside", "median at first", "median at last", "last / first")
    for growth in found:
        medians = (f"{1000 * seconds:.1f}" for seconds in (growth.first_median, growth.last_median))
        table.add_row(str(growth.streams), *medians, f"{growth.ratio:.2f}")
    return table


def _idle(settings: Settings, found: Idle) -> Table:
    table = _table(f"{settings.idle} idle sessions, KV cache for {settings.idle_kv}", "", "")
    table.add_row("asked again, answered", f"{found.answered}")
    table.add_row("longest time to the first token (ms)", f"{1000 * found.longest_first_token:.1f}")
    table.add_row("blocks in use while idle", f"{found.used_blocks} of {found.num_blocks}")
    table.add_row("sessions without KV while idle", f"{found.evicted}")
    table.add_row("memory of a session in the frontend (KB)", f"{found.frontend_bytes / 1000:.1f}")
    table.add_row("memory of a session in the core (KB)", f"{found.core_bytes / 1000:.1f}")
    return table
