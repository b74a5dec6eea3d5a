"""A report as tables for the terminal."""

from rich.console import Console
from rich.table import Table

from .mailbox import OURS, THEIRS, Report
from .measurements import MEASUREMENTS
from .messages import SIZES
from .transport import TRANSPORTS

_WIDTH = 110  # where there is no terminal


def print_report(report: Report) -> None:
    """Print it to standard output."""
    console = open_report(report.machine)
    settings = report.settings
    console.print(f"Medians of {settings.repeat} repeats; {settings.seconds:g} s measured for each figure.\n")
    for measurement in settings.measurements:
        console.print(_table(report, measurement))
    for transport in settings.transports:
        console.print(f"{TRANSPORTS[transport].label}: {TRANSPORTS[transport].about}.")
    console.print("All: the same text or, for 1MB, bytes, encoded by msgspec as msgpack; uvloop where there is an event loop.")


def open_report(machine: dict[str, str | float]) -> Console:
    """A console for a report, which begins with the facts about the machine."""
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    return console


def _table(report: Report, measurement: str) -> Table:
    kind = MEASUREMENTS[measurement]
    found = {(result.size, result.transport): result.figures for result in report.results if result.measurement == measurement}
    ratios = {ratio.size: ratio.ratio for ratio in report.ratios if ratio.measurement == measurement}
    transports = [name for name in report.settings.transports if any(name == key[1] for key in found)]
    table = Table(title=f"{kind.title} ({kind.unit})", title_justify="left")
    table.add_column("size")
    for transport in transports:
        table.add_column(TRANSPORTS[transport].label, justify="right")
    if ratios:
        table.add_column(f"{TRANSPORTS[OURS].label} / {TRANSPORTS[THEIRS].label}", justify="right")
    for name in report.settings.sizes:
        size = SIZES[name]
        cells = [_cell(found[size, transport]) for transport in transports]
        table.add_row(name, *cells, *([f"{ratios[size]:.2f}"] if ratios else []))
    return table


def _cell(figures: dict[str, float]) -> str:
    return " / ".join(f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in figures.values())
