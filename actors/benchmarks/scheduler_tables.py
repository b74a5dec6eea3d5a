"""The scheduler's report as tables for the terminal."""

from rich.console import Console
from rich.table import Table

from .report import open_report
from .scheduler import ADMITTED, Report, Result

_DECODE = {"plan_us": "plan", "update_us": "update", "step_us": "step", "request_us": "a request"}
_ADMISSION = {"add_us": "add", "plan_us": "plan", "update_us": "update", "request_us": "all"}


def print_scheduler_report(report: Report) -> None:
    """Print it to standard output."""
    console = open_report(report.machine)
    settings = report.settings
    in_flight = 2 if settings.async_scheduling else 1
    console.print(f"Medians of {settings.repeat} repeats, {in_flight} steps in flight at most.\n")
    decode = [result for result in report.results if result.measurement == "decode"]
    admission = [result for result in report.results if result.measurement != "decode"]
    _print_table(console, f"A step of running requests (µs, of {settings.steps} steps)", "running", _DECODE, decode)
    title = f"A request that ends with its first token (µs, of {ADMITTED})"
    _print_table(console, title, "prompt tokens", _ADMISSION, admission)
    for result in report.results:
        if result.hot_spots:
            _print_hot_spots(console, result)
    console.print("Only the scheduler is timed: encoding of messages and making of results are not counted.")


def _print_table(console: Console, title: str, size: str, columns: dict[str, str], results: list[Result]) -> None:
    kinds = len({result.measurement for result in results}) > 1
    table = Table(title=title, title_justify="left")
    table.add_column(size, justify="right")
    if kinds:
        table.add_column("prefix cache")
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for result in results:
        kind = [result.measurement.partition(" ")[0]] if kinds else []
        table.add_row(f"{result.size:,}", *kind, *(_cell(result.figures[name]) for name in columns))
    console.print(table)


def _print_hot_spots(console: Console, result: Result) -> None:
    table = Table(title=f"Own time under the profiler: {result.measurement}, {result.size:,}", title_justify="left")
    table.add_column("function")
    table.add_column("calls", justify="right")
    table.add_column("share", justify="right")
    for spot in result.hot_spots:
        table.add_row(spot.function, f"{spot.calls:,}", f"{spot.share:.1%}")
    console.print(table)


def _cell(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
