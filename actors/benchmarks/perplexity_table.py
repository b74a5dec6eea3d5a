"""The report on perplexity as a table for the terminal."""

from rich.table import Table

from .perplexity import Report
from .report import open_report


def print_perplexity_report(report: Report) -> None:
    """Print it to standard output."""
    console, settings = open_report(report.machine), report.settings
    kept = f"; dense: {', '.join(settings.ignore)}" if settings.ignore else ""
    console.print(f"Model {settings.model}, dtype {settings.dtype}{kept}.\n", markup=False)
    table = Table(title=f"{report.results[0].tokens} tokens in windows of {settings.window}", title_justify="left")
    for heading in ("quantization", "perplexity", "nats a token"):
        table.add_column(heading, justify="right" if table.columns else "left")
    for one in report.results:
        table.add_row(one.quantization, f"{one.perplexity:.3f}", f"{one.nats:.4f}")
    console.print(table)
