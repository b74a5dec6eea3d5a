"""The reports on throughput, latency and growth as tables for the terminal, and that on growth as plots."""

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from .decode_room import BATCH_CONTEXT
from .engine_report import GrowthReport, LatencyReport, StepTime, Throughput, ThroughputReport
from .mermaid import line_plot
from .report import open_report
from .sessions_report import Spread
from .step_phases import BETWEEN, CORE, FRONTEND, WORKER, Breakdown

_PHASES = {
    (CORE, "update"): "apply the result",
    (CORE, "messages"): "take requests",
    (CORE, "plan"): "plan the next step",
    (CORE, "submit"): "send the plan",
    (CORE, "beside"): "outputs, beside the worker",
    (CORE, "wait"): "wait for the worker",
    (CORE, "idle"): "wait for requests",
    (BETWEEN, "mailboxes"): "mailboxes and wake-ups",
    (WORKER, "idle"): "wait for a plan",
    (WORKER, "receive"): "receive the plan",
    (WORKER, "rows"): "take it into the rows",
    (WORKER, "inputs"): "build inputs",
    (WORKER, "forward"): "forward (body)",
    (WORKER, "logits"): "logits",
    (WORKER, "choose"): "choose tokens",
    (WORKER, "result"): "build the result",
    (WORKER, "send"): "send the result",
    (FRONTEND, "outputs"): "detokenise, hand over",
}
_LEGEND = """\
Core, worker and frontend work at the same time; each of the first two has 100 %. Mailboxes and wake-ups: from
a plan to its result, but for the worker's work. They and that work lie in what the core does after planning."""


def print_throughput_report(report: ThroughputReport) -> None:
    """Print it to standard output."""
    console = open_report(report.machine)
    _print_model(console, report.settings.model, report.settings.options)
    headings = ("streams", "in", "out", "requests", "tok/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99")
    table = _table("Throughput (waits in ms)", *headings)
    for found in report.results:
        point = found.point
        counts = (point.concurrency, point.input_len, point.output_len, point.num_prompts)
        waits = (found.first_token.p50, found.first_token.p99, found.inter_token.p50, found.inter_token.p99)
        table.add_row(*map(str, counts), f"{found.tokens_per_second:,.1f}", *(_ms(seconds) for seconds in waits))
    console.print(table)
    console.print(_breakdowns({_name(found): found.breakdown for found in report.results}))
    console.print("tok/s: output by the whole time, prompts included. TTFT: time to the first token. ITL: between two outputs.")
    console.print(_LEGEND)


def print_latency_report(report: LatencyReport) -> None:
    """Print it to standard output."""
    console, settings = open_report(report.machine), report.settings
    _print_model(console, settings.model, settings.options)
    what = f"{settings.batch_size} requests at once, {settings.input_len} tokens in, {settings.output_len} out"
    console.print(f"{settings.repeat} batches of {what}.")
    table = _table("Times (ms)", "", "p50", "p99", "longest")
    for name, spread in (("batch", report.batch), ("first token", report.first_token), ("step", report.step)):
        table.add_row(name, *map(_ms, _values(spread)))
    console.print(table)
    console.print(f"Mean of the batches {_ms(report.mean)} ms; {report.tokens_per_second:,.1f} tokens of output a second.\n")
    console.print(_breakdowns({"": report.breakdown}))
    console.print("Batch: from its requests to its last token. Step: between two outputs of a request.")
    console.print(_LEGEND)


def print_growth_report(report: GrowthReport, *, plots: bool = False) -> None:
    """Print it to standard output; with `plots` also a Mermaid block of each series, for Markdown."""
    console, settings = open_report(report.machine), report.settings
    _print_model(console, settings.model, settings.options)
    by_batch_size = [(found.batch_size, found) for found in report.batch_sizes]
    by_context = [(found.context, found) for found in report.contexts]
    series = (
        (f"A decode step of requests with a context of {BATCH_CONTEXT} tokens", "requests at once", by_batch_size),
        ("A decode step of one request", "tokens of context", by_context),
    )
    for title, what, found in series:
        console.print(_growth(title, what, found))
    measured = f"{settings.repeat} x {settings.output_len} steps of each batch, of which medians are shown"
    console.print(f"{measured}; in none of them is a prompt computed. Context: tokens of the prompt.")
    for title, what, found in series if plots else ():
        values, steps = [value for value, _ in found], [1000 * one.step.p50 for _, one in found]
        sys.stdout.write("\n" + line_plot(title, (what, values), ("ms", steps)) + "\n")


def _growth(title: str, what: str, found: list[tuple[int, StepTime]]) -> Table:
    table = _table(title, what, "step, ms", "tok/s", "of the first")
    for value, one in found:
        table.add_row(f"{value:,}", f"{1000 * one.step.p50:,.2f}", f"{one.tokens_per_second:,.1f}", f"{one.ratio:.2f}")
    return table


def _print_model(console: Console, model: str, options: dict[str, Any]) -> None:
    given = "".join(f", {name} {value}" for name, value in options.items())
    console.print(f"Model {model}{given}.\n", markup=False)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    return table


def _name(found: Throughput) -> str:
    point = found.point
    return f"{point.concurrency} x {point.input_len}+{point.output_len}"


def _values(spread: Spread) -> tuple[float, float, float]:
    return spread.p50, spread.p99, spread.longest


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f}"


def _breakdowns(found: dict[str, Breakdown]) -> Table:
    """A column for each: microseconds of the mean step, and their share of it."""
    table = Table(title="Where a step's time goes (µs, share)", title_justify="left")
    table.add_column("")
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    cells = [{(phase.process, phase.name): (phase.step_us, phase.share) for phase in one.phases} for one in found.values()]
    rows = [key for key in _PHASES if any(key in column for column in cells)]
    for at, key in enumerate(rows):
        process, _ = key
        first = not at or rows[at - 1][0] != process
        last = at + 1 == len(rows) or rows[at + 1][0] != process
        figures = [f"{us:,.0f} {share:6.1%}" for us, share in (column.get(key, (0.0, 0.0)) for column in cells)]
        table.add_row(process if first else "", _PHASES[key], *figures, end_section=last)
    ones = list(found.values())
    table.add_row("step", "mean, in ms", *(f"{one.step_ms:,.2f}" for one in ones))
    table.add_row("", "how many", *(f"{one.steps:,}" for one in ones), end_section=True)
    table.add_row("token", "detokenise, hand over", *(f"{one.output_token_us:,.1f}" for one in ones))
    table.add_row("", "all CPU of this process", *(f"{one.frontend_cpu_token_us:,.1f}" for one in ones))
    return table
