"""`ringpost bench`: measures Ringpost's parts beside their alternatives on this machine."""

import argparse
import math
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import msgspec
from rich.console import Console
from rich.progress import Progress

from .benchmarks.mailbox import Settings, plan, run_mailbox_benchmark
from .benchmarks.measurements import MEASUREMENTS
from .benchmarks.messages import SIZES
from .benchmarks.report import print_report
from .benchmarks.transport import TRANSPORTS, missing

_EXIT_TERMINATED = 128 + signal.SIGTERM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    text = "mailboxes beside zmq.asyncio, multiprocessing.Pipe and multiprocessing.Queue"
    mailbox = benchmarks.add_parser("mailbox", help=text, description=f"Measure {text}.")
    mailbox.set_defaults(parser=mailbox)
    mailbox.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    mailbox.add_argument("--repeat", type=int, default=3, metavar="N", help="repeats, of which medians are shown (default 3)")
    mailbox.add_argument("--seconds", type=float, default=1.0, metavar="S", help="measured for each figure (default 1)")
    for flag, table in (("--measurements", MEASUREMENTS), ("--transports", TRANSPORTS), ("--sizes", SIZES)):
        names = list(table)
        text = f"only these of {', '.join(names)}"
        mailbox.add_argument(flag, nargs="+", choices=names, default=names, metavar="NAME", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Body of the command; returns its exit code."""
    if arguments.repeat < 1:
        raise ValueError(f"repeat must be an integer of at least 1, got {arguments.repeat}")
    if not 0 < arguments.seconds < math.inf:
        raise ValueError(f"seconds must be a number above 0, got {arguments.seconds:g}")
    left_out = {name: why for name in arguments.transports if (why := missing(name)) is not None}
    settings = Settings(
        seconds=arguments.seconds,
        repeat=arguments.repeat,
        measurements=arguments.measurements,
        transports=[name for name in arguments.transports if name not in left_out],
        sizes=arguments.sizes,
    )
    if not plan(settings):
        raise ValueError("; ".join(left_out.values()) or "none of these transports can poll: spinning needs another one")
    if not arguments.json:
        for why in left_out.values():
            sys.stdout.write(f"{why}\n")
        sys.stdout.flush()
    with _unwound_by_sigterm(), _progress(settings.repeat * len(plan(settings))) as done:
        report = run_mailbox_benchmark(settings, left_out, done)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        print_report(report)
    return 0


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task("measuring", total=total)
        yield lambda: bar.advance(row)


@contextmanager
def _unwound_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block like Ctrl-C, so that processes and files go."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(_EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
