"""The frontend's report as a table for the terminal."""

from rich.table import Table

from .frontend import Report
from .report import open_report


def print_frontend_report(report: Report) -> None:
    """Print it to standard output."""
    console, settings = open_report(report.machine), report.settings
    console.print(f"Medians of {settings.repeat} repeats, {settings.streams} streams.\n")
    kinds = list(dict.fromkeys(result.output_kind for result in report.results))
    table = Table(title="CPU of a token (µs)", title_justify="left")
    for heading in ("tokens of an answer", *kinds):
        table.add_column(heading, justify="right")
    figures = {(result.tokens, result.output_kind): result.token_us for result in report.results}
    for tokens in settings.tokens:
        table.add_row(f"{tokens:,}", *(f"{figures[tokens, kind]:.1f}" for kind in kinds))
    console.print(table)
    console.print("From the bytes of the core's message to the consumer, who looks at text and token ids of each output.")
