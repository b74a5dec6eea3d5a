"""The report on recovery as tables for the terminal."""

from statistics import median

from rich.table import Table

from .recovery_report import FAULTS, MARK, Overhead, Report, Result
from .report import open_report

_COLUMNS = ("longest pause", "new request", "hit", "failed", "lost", "changed")
_LEGEND = """\
Longest pause: seconds between two outputs of a stream. New request: seconds until its first token.
Hit, failed: streams that were unfinished as the fault struck, and that ended by an error.
Lost, changed: tokens of all streams, against the undisturbed run."""


def print_recovery_report(report: Report) -> None:
    """Print it to standard output."""
    console = open_report(report.machine)
    settings = report.settings
    console.print(
        f"{settings.streams} streams of {settings.tokens} tokens each, greedy and seeded by turns; model {settings.model}, "
        f"hang_timeout {settings.hang_timeout:g} s.",
        markup=False,
    )
    console.print(f"A fault strikes, and a new request comes, when each stream has got {MARK} tokens.\n")
    console.print(_faults(report.results))
    console.print(_LEGEND)
    for fault in dict.fromkeys(settings.faults):
        console.print(f"{fault}: {FAULTS[fault].about}.")
    for result in report.results:
        for error in dict.fromkeys(result.errors):
            console.print(f"A request failed at {result.fault}: {error}", markup=False)
    console.print(f"Of {report.processes_seen} processes of the engine, {report.processes_left} were left over after its end.")
    if report.overhead is not None:
        console.print()
        console.print(_overhead(report.overhead))


def _faults(results: list[Result]) -> Table:
    table = Table(title="What streams see of a fault", title_justify="left")
    table.add_column("fault")
    for heading in _COLUMNS:
        table.add_column(heading, justify="right")
    table.add_column("replaced")
    for result in results:
        waited = "-" if result.new_request_s is None else f"{result.new_request_s:.2f}"
        counts = (result.streams_struck, result.streams_failed, result.tokens_lost, result.tokens_changed)
        replaced = ", ".join(result.replaced) or "-"
        table.add_row(result.fault, f"{result.longest_pause_s:.2f}", waited, *map(str, counts), replaced)
    return table


def _overhead(overhead: Overhead) -> Table:
    table = Table(title="What restarts cost while nothing dies (tokens/s of all streams)", title_justify="left")
    table.add_column("")
    table.add_column("median", justify="right")
    table.add_column("runs")
    for name, rates in (("max_restarts=0", overhead.without_restarts), ("its default", overhead.with_restarts)):
        table.add_row(name, f"{median(rates):.1f}", " ".join(f"{rate:.1f}" for rate in rates))
    table.add_row("ratio", f"{overhead.ratio:.3f}", "")
    return table
