"""The report on starts as tables for the terminal."""

from statistics import median

from rich.table import Table

from .report import open_report
from .startup import Report
from .startup_server import Start

_LEGEND = """\
Healthy: from exec to the status 200 of /health. Answered: from then on to the end of a completion of one token.
exec: until a process's first line that is ours; of frontend0 and core0 with what they import first. Processes wait
for each other, so phases of several do not add up. ready: since the start of the engine; the core allocates the
KV cache after the worker is. Used: once it has answered. PSS: with its share of what several use; RSS: with all."""


def print_startup_report(report: Report) -> None:
    """Print it to standard output."""
    console, settings, starts = open_report(report.machine), report.settings, report.starts
    console.print(f"Model {settings.model}, medians of {settings.repeats} starts with warm caches.\n", markup=False)
    each = ", ".join(f"{start.healthy:.2f}" for start in starts)
    console.print(f"Healthy after {report.healthy_median:.2f} s ({each}).")
    console.print(f"Answered {median(start.answered for start in starts):.2f} s later.\n")
    console.print(_phases(starts))
    console.print(_usage(starts))
    console.print(_LEGEND)


def _phases(starts: list[Start]) -> Table:
    table = Table(title="Where the time goes (s)", title_justify="left")
    for heading in ("actor", "phase", "median", "longest"):
        table.add_column(heading, justify="right" if len(table.columns) > 1 else "left")
    for actor, phases in starts[0].phases.items():
        for phase in phases:
            seconds = [start.phases[actor][phase] for start in starts]
            table.add_row(actor, phase, f"{median(seconds):.2f}", f"{max(seconds):.2f}")
    return table


def _usage(starts: list[Start]) -> Table:
    table = Table(title="What each process has used", title_justify="left")
    for heading in ("actor", "CPU (s)", "PSS (MB)", "most RSS (MB)"):
        table.add_column(heading, justify="right" if table.columns else "left")
    actors = list(starts[0].usage)
    for title, names in (*((actor, [actor]) for actor in actors), ("all", actors)):
        used = [[start.usage[name] for name in names] for start in starts]
        cpu = median(sum(one.cpu_seconds for one in each) for each in used)
        pss = median(sum(one.pss for one in each) for each in used)
        peak = median(sum(one.peak_rss for one in each) for each in used)
        table.add_row(title, f"{cpu:.2f}", f"{pss / 2**20:,.0f}", f"{peak / 2**20:,.0f}")
    return table
