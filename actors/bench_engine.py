"""The benchmarks of `ringpost bench` that take an engine with any of its options: their arguments, and how they are run."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .benchmarks.command import add_model, check_least, progress, run_until_sigterm
from .benchmarks.engine_report import (
    GrowthReport,
    GrowthSettings,
    LatencyReport,
    LatencySettings,
    ThroughputReport,
    ThroughputSettings,
)
from .benchmarks.engine_tables import print_growth_report, print_latency_report, print_throughput_report
from .benchmarks.growth import run_growth_benchmark
from .benchmarks.latency import run_latency_benchmark
from .benchmarks.throughput import points_of, run_throughput_benchmark
from .config import add_engine_arguments, engine_options


@dataclass(frozen=True)
class EngineBenchmark:
    """One of them: what it finds, what adds the arguments that only it has, and what returns a report and how to print it."""

    text: str
    add_own: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace], Any]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add all its arguments."""
        add_model(parser)
        self.add_own(parser)
        add_engine_arguments(parser)


def _add_throughput_arguments(parser: argparse.ArgumentParser) -> None:
    text = "streams at once, each of which asks one request after the other; several numbers are measured one by one "
    text += "(default 1 8 32, and 64 with short requests)"
    parser.add_argument("-c", "--concurrency", nargs="+", type=int, metavar="N", help=text)
    for flag, default, text in (
        ("--input-len", "128", "tokens of each prompt"),
        ("--output-len", "128", "tokens of each answer"),
        ("--num-prompts", "two a stream, at least 4", "requests of all streams together"),
    ):
        parser.add_argument(flag, type=int, metavar="N", help=f"{text} (default {default})")


def _measure_throughput(arguments: argparse.Namespace) -> tuple[ThroughputReport, Callable[[ThroughputReport], None]]:
    given = [name for name in ("concurrency", "input_len", "num_prompts") if getattr(arguments, name) is not None]
    check_least(arguments, *given)
    if arguments.output_len is not None:
        check_least(arguments, "output_len", least=2)
    points = points_of(arguments.concurrency, arguments.input_len, arguments.output_len, arguments.num_prompts)
    settings = ThroughputSettings(model=arguments.model, options=_engine_options(arguments), points=points)
    with progress(len(points)) as done:
        return run_until_sigterm(run_throughput_benchmark(settings, done)), print_throughput_report


def _add_latency_arguments(parser: argparse.ArgumentParser) -> None:
    for flag, default, text in (
        ("--batch-size", 8, "requests at once"),
        ("--input-len", 32, "tokens of each prompt"),
        ("--output-len", 128, "tokens of each answer"),
        ("--repeat", 5, "batches, one after the other"),
    ):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{text} (default {default})")


def _measure_latency(arguments: argparse.Namespace) -> tuple[LatencyReport, Callable[[LatencyReport], None]]:
    check_least(arguments, "batch_size", "input_len", "repeat")
    check_least(arguments, "output_len", least=2)
    settings = LatencySettings(
        model=arguments.model,
        options=_engine_options(arguments),
        batch_size=arguments.batch_size,
        input_len=arguments.input_len,
        output_len=arguments.output_len,
        repeat=arguments.repeat,
    )
    with progress(1) as done:
        return run_until_sigterm(run_latency_benchmark(settings, done)), print_latency_report


def _add_growth_arguments(parser: argparse.ArgumentParser) -> None:
    for flag, numbers, text in (
        ("--batch-sizes", [1, 2, 4, 8, 16, 32, 64, 128], "requests at once, with a context of 128 tokens each"),
        ("--contexts", [128, 256, 512, 1024, 2048, 4096, 8000], "tokens of the context of one request"),
    ):
        text = f"{text} (default {' '.join(map(str, numbers))})"
        parser.add_argument(flag, nargs="+", type=int, default=numbers, metavar="N", help=text)
    for flag, default, text in (
        ("--output-len", 32, "steps that are measured of each batch"),
        ("--repeat", 3, "how often each batch is measured; medians of all steps are shown"),
    ):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{text} (default {default})")
    parser.add_argument("--mermaid", action="store_true", help="print plots for Markdown too")


def _measure_growth(arguments: argparse.Namespace) -> tuple[GrowthReport, Callable[[GrowthReport], None]]:
    check_least(arguments, "batch_sizes", "contexts", "output_len", "repeat")
    if arguments.mermaid and arguments.json:
        raise ValueError("mermaid must be left out with json, which prints one object alone")
    settings = GrowthSettings(
        model=arguments.model,
        options=_engine_options(arguments),
        batch_sizes=arguments.batch_sizes,
        contexts=arguments.contexts,
        output_len=arguments.output_len,
        repeat=arguments.repeat,
    )
    with progress(len(settings.batch_sizes) + len(settings.contexts)) as done:
        report = run_until_sigterm(run_growth_benchmark(settings, done))
    return report, partial(print_growth_report, plots=arguments.mermaid)


def _engine_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those that were given, but for the model."""
    return {name: value for name, value in engine_options(arguments).items() if name != "model"}


ENGINE_BENCHMARKS = {
    "throughput": EngineBenchmark(
        "tokens a second and waits of an engine under load, and where the time of its steps goes",
        _add_throughput_arguments,
        _measure_throughput,
    ),
    "latency": EngineBenchmark(
        "how long one batch of requests takes, and each of its steps, and where their time goes",
        _add_latency_arguments,
        _measure_latency,
    ),
    "growth": EngineBenchmark(
        "how a decode step grows with the requests at once, and with the context of one",
        _add_growth_arguments,
        _measure_growth,
    ),
}
