"""`ringpost bench`: measures parts of Ringpost on this machine, and what one would use instead."""

import argparse
import asyncio
import math
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.progress import Progress

from ..ipc.messages.config import RuntimeConfig
from .benchmarks.frontend import Report as FrontendReport
from .benchmarks.frontend import Settings as FrontendSettings
from .benchmarks.frontend import cases as frontend_cases
from .benchmarks.frontend import run_frontend_benchmark
from .benchmarks.frontend_table import print_frontend_report
from .benchmarks.mailbox import Report as MailboxReport
from .benchmarks.mailbox import Settings as MailboxSettings
from .benchmarks.mailbox import plan, run_mailbox_benchmark
from .benchmarks.measurements import MEASUREMENTS
from .benchmarks.messages import SIZES
from .benchmarks.recovery import run_recovery_benchmark
from .benchmarks.recovery_report import FAULTS, MARK
from .benchmarks.recovery_report import Report as RecoveryReport
from .benchmarks.recovery_report import Settings as RecoverySettings
from .benchmarks.recovery_tables import print_recovery_report
from .benchmarks.report import print_report
from .benchmarks.scheduler import Report as SchedulerReport
from .benchmarks.scheduler import Settings as SchedulerSettings
from .benchmarks.scheduler import cases, run_scheduler_benchmark
from .benchmarks.scheduler_tables import print_scheduler_report
from .benchmarks.sessions import MEASUREMENTS as SESSIONS_MEASUREMENTS
from .benchmarks.sessions import run_sessions_benchmark
from .benchmarks.sessions_report import Report as SessionsReport
from .benchmarks.sessions_report import Settings as SessionsSettings
from .benchmarks.sessions_tables import print_sessions_report
from .benchmarks.transport import TRANSPORTS, missing
from .loops import loop_factory

R = TypeVar("R")

_EXIT_TERMINATED = 128 + signal.SIGTERM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    text = "mailboxes beside zmq.asyncio, multiprocessing.Pipe and multiprocessing.Queue"
    mailbox = benchmarks.add_parser("mailbox", help=text, description=f"Measure {text}.")
    mailbox.set_defaults(parser=mailbox, measure=_measure_mailbox)
    _add_common(mailbox)
    mailbox.add_argument("--seconds", type=float, default=1.0, metavar="S", help="measured for each figure (default 1)")
    for flag, table in (("--measurements", MEASUREMENTS), ("--transports", TRANSPORTS), ("--sizes", SIZES)):
        names = list(table)
        text = f"only these of {', '.join(names)}"
        mailbox.add_argument(flag, nargs="+", choices=names, default=names, metavar="NAME", help=text)
    text = "what it costs to plan a step and to apply its result, without a model"
    scheduler = benchmarks.add_parser("scheduler", help=text, description=f"Measure {text}.")
    scheduler.set_defaults(parser=scheduler, measure=_measure_scheduler)
    _add_common(scheduler)
    scheduler.add_argument("--steps", type=int, default=256, metavar="N", help="steps of each repeat (default 256)")
    for flag, numbers, text in (
        ("--running", [1, 32, 256, 1024], "requests that run at once"),
        ("--prompt-tokens", [128, 2048], "tokens of a prompt; those that run have the first"),
    ):
        text = f"{text} (default {' '.join(map(str, numbers))})"
        scheduler.add_argument(flag, nargs="+", type=int, default=numbers, metavar="N", help=text)
    scheduler.add_argument("--async-scheduling", action="store_true", help="plan a step while the one before runs")
    scheduler.add_argument("--profile", action="store_true", help="show where the time goes")
    text = "what a token costs from the core's message to its consumer, without a model"
    frontend = benchmarks.add_parser("frontend", help=text, description=f"Measure {text}.")
    frontend.set_defaults(parser=frontend, measure=_measure_frontend)
    _add_common(frontend)
    frontend.add_argument("--model", default="smollm2", help="whose tokenizer to use (default: %(default)s)")
    frontend.add_argument("--streams", type=int, default=256, metavar="N", help="consumers at once (default 256)")
    numbers, text = [128, 512, 2048], "tokens of each answer"
    text = f"{text} (default {' '.join(map(str, numbers))})"
    frontend.add_argument("--tokens", nargs="+", type=int, default=numbers, metavar="N", help=text)
    frontend.add_argument("--stop", nargs="*", default=[], metavar="TEXT", help="stop strings to look for (default none)")
    text = "what streams see of it when processes of an engine die"
    recovery = benchmarks.add_parser("recovery", help=text, description=f"Measure {text}.")
    recovery.set_defaults(parser=recovery, measure=_measure_recovery)
    _add_recovery_arguments(recovery)
    text = "interrupted answers, long conversations and idle sessions of an engine that works"
    sessions = benchmarks.add_parser("sessions", help=text, description=f"Measure {text}.")
    sessions.set_defaults(parser=sessions, measure=_measure_sessions)
    _add_model(sessions)
    for flag, default, text in (
        ("--streams", 16, "other requests that run meanwhile"),
        ("--turns", 100, "answers that are interrupted"),
        ("--chunks", 50, "chunks of a session that grows"),
        ("--idle", 500, "sessions that have had a turn and wait"),
        ("--idle-kv", 50, "of these, the KV cache has room for so many"),
    ):
        sessions.add_argument(flag, type=int, default=default, metavar="N", help=f"{text} (default {default})")


def _add_common(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="repeats, of which medians are shown (default 3)")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def _add_model(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    parser.add_argument("--model", default="smollm2", help="alias, directory, .gguf file or hub id (default: %(default)s)")


def _add_recovery_arguments(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    for flag, default, text in (
        ("--streams", 32, "requests at once, greedy and seeded by turns"),
        ("--tokens", 48, "tokens of each"),
        ("--overhead", 0, "pairs of runs without a fault, with max_restarts=0 and with its default"),
    ):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{text} (default {default})")
    text = f"what happens, in this order: {', '.join(FAULTS)}; also with commas (default: all)"
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), metavar="NAME", help=text)
    text = "seconds a process may take for a message before it is replaced (default 2)"
    parser.add_argument("--hang-timeout", type=float, default=2.0, metavar="S", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Body of the command; returns its exit code."""
    report, print_tables = arguments.measure(arguments)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        print_tables(report)
    return 0


def _check_least(arguments: argparse.Namespace, *names: str, least: int = 1) -> None:
    """Raise ValueError if one of these arguments holds an integer below `least`."""
    for name in names:
        value = getattr(arguments, name)
        for number in value if isinstance(value, list) else [value]:
            if number < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {number}")


def _measure_mailbox(arguments: argparse.Namespace) -> tuple[MailboxReport, Callable[[MailboxReport], None]]:
    _check_least(arguments, "repeat")
    if not 0 < arguments.seconds < math.inf:
        raise ValueError(f"seconds must be a number above 0, got {arguments.seconds:g}")
    left_out = {name: why for name in arguments.transports if (why := missing(name)) is not None}
    settings = MailboxSettings(
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
        return run_mailbox_benchmark(settings, left_out, done), print_report


def _measure_scheduler(arguments: argparse.Namespace) -> tuple[SchedulerReport, Callable[[SchedulerReport], None]]:
    _check_least(arguments, "repeat", "steps", "running", "prompt_tokens")
    settings = SchedulerSettings(
        running=arguments.running,
        prompt_tokens=arguments.prompt_tokens,
        steps=arguments.steps,
        repeat=arguments.repeat,
        async_scheduling=arguments.async_scheduling,
        profile=arguments.profile,
    )
    with _progress(len(cases(settings))) as done:
        return run_scheduler_benchmark(settings, done), print_scheduler_report


def _measure_frontend(arguments: argparse.Namespace) -> tuple[FrontendReport, Callable[[FrontendReport], None]]:
    _check_least(arguments, "repeat", "streams", "tokens")
    settings = FrontendSettings(
        model=arguments.model,
        streams=arguments.streams,
        tokens=arguments.tokens,
        stop=arguments.stop,
        repeat=arguments.repeat,
    )
    with _progress(len(frontend_cases(settings))) as done:
        return run_frontend_benchmark(settings, done), print_frontend_report


def _measure_recovery(arguments: argparse.Namespace) -> tuple[RecoveryReport, Callable[[RecoveryReport], None]]:
    _check_least(arguments, "streams")
    _check_least(arguments, "tokens", least=2 * MARK)
    _check_least(arguments, "overhead", least=0)
    faults = [name for word in arguments.faults for name in word.split(",")]
    for name in faults:
        if name not in FAULTS:
            raise ValueError(f"faults must be of {', '.join(FAULTS)}, got {name!r}")
    settings = RecoverySettings(
        model=arguments.model,
        streams=arguments.streams,
        tokens=arguments.tokens,
        faults=faults,
        hang_timeout=arguments.hang_timeout,
        overhead=arguments.overhead,
    )
    runs = 1 + len(faults) + 2 * settings.overhead
    # The folder is there until threads that write post-mortems have ended, with the loop.
    with tempfile.TemporaryDirectory(prefix="ringpost-bench-") as folder, _progress(runs) as done:
        return _run_until_sigterm(run_recovery_benchmark(settings, folder, done)), print_recovery_report


def _measure_sessions(arguments: argparse.Namespace) -> tuple[SessionsReport, Callable[[SessionsReport], None]]:
    _check_least(arguments, "streams", least=0)
    _check_least(arguments, "turns", "idle", "idle_kv")
    _check_least(arguments, "chunks", least=2)
    settings = SessionsSettings(
        model=arguments.model,
        streams=arguments.streams,
        turns=arguments.turns,
        chunks=arguments.chunks,
        idle=arguments.idle,
        idle_kv=arguments.idle_kv,
    )
    with _progress(SESSIONS_MEASUREMENTS) as done:
        return _run_until_sigterm(run_sessions_benchmark(settings, done)), print_sessions_report


def _run_until_sigterm(body: Coroutine[Any, Any, R]) -> R:
    """Run it; SIGTERM cancels it, like Ctrl-C, so that processes and files go."""

    async def cancelled_by_sigterm() -> R:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            return await body
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    with asyncio.Runner(loop_factory=loop_factory(RuntimeConfig())) as runner:
        try:
            return runner.run(cancelled_by_sigterm())
        except asyncio.CancelledError:
            sys.exit(_EXIT_TERMINATED)


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
