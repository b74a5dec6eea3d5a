"""`ringpost bench`: measures parts of Ringpost on this machine, and what one would use instead."""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from .bench_engine import ENGINE_BENCHMARKS
from .benchmarks.command import add_json, add_model, check_least, progress, run_until_sigterm, unwound_by_sigterm
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
from .benchmarks.perplexity import Report as PerplexityReport
from .benchmarks.perplexity import Settings as PerplexitySettings
from .benchmarks.perplexity import run_perplexity_benchmark
from .benchmarks.perplexity_table import print_perplexity_report
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
from .benchmarks.startup import Report as StartupReport
from .benchmarks.startup import Settings as StartupSettings
from .benchmarks.startup import run_startup_benchmark
from .benchmarks.startup_table import print_startup_report
from .benchmarks.transport import TRANSPORTS, missing


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
    add_model(sessions)
    for flag, default, text in (
        ("--streams", 16, "other requests that run meanwhile"),
        ("--turns", 100, "answers that are interrupted"),
        ("--chunks", 50, "chunks of a session that grows"),
        ("--idle", 500, "sessions that have had a turn and wait"),
        ("--idle-kv", 50, "of these, the KV cache has room for so many"),
    ):
        sessions.add_argument(flag, type=int, default=default, metavar="N", help=f"{text} (default {default})")
    for name, benchmark in ENGINE_BENCHMARKS.items():
        engine = benchmarks.add_parser(name, help=benchmark.text, description=f"Measure {benchmark.text}.")
        engine.set_defaults(parser=engine, measure=benchmark.measure)
        benchmark.add_arguments(engine)
    text = "how soon `ringpost serve` is healthy, where the time goes, and the memory it takes"
    startup = benchmarks.add_parser("startup", help=text, description=f"Measure {text}.")
    startup.set_defaults(parser=startup, measure=_measure_startup)
    add_model(startup)
    startup.add_argument("--repeats", type=int, default=5, metavar="N", help="starts, of which medians are shown (default 5)")
    text = "how well a model foretells a text, with its weights as they are and quantised"
    perplexity = benchmarks.add_parser("perplexity", help=text, description=f"Measure {text}.")
    perplexity.set_defaults(parser=perplexity, measure=_measure_perplexity)
    _add_perplexity_arguments(perplexity)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="repeats, of which medians are shown (default 3)")


def _add_recovery_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
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


def _add_perplexity_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="FILE", help="a text in UTF-8")
    add_model(parser)
    parser.add_argument("--dtype", default="auto", help="as for an engine (default: %(default)s)")
    parser.add_argument("--window", type=int, default=512, metavar="N", help="tokens that are seen together (default 512)")
    names = ["none", "int8", "int4"]
    text = f"only these of {', '.join(names)}"
    parser.add_argument("--quantizations", nargs="+", choices=names, default=names, metavar="NAME", help=text)
    parser.add_argument("--ignore", nargs="+", default=[], metavar="MODULE", help="modules that stay dense (default none)")


def run(arguments: argparse.Namespace) -> int:
    """Body of the command; returns its exit code."""
    report, print_tables = arguments.measure(arguments)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        print_tables(report)
    return 0


def _measure_mailbox(arguments: argparse.Namespace) -> tuple[MailboxReport, Callable[[MailboxReport], None]]:
    check_least(arguments, "repeat")
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
    with unwound_by_sigterm(), progress(settings.repeat * len(plan(settings))) as done:
        return run_mailbox_benchmark(settings, left_out, done), print_report


def _measure_scheduler(arguments: argparse.Namespace) -> tuple[SchedulerReport, Callable[[SchedulerReport], None]]:
    check_least(arguments, "repeat", "steps", "running", "prompt_tokens")
    settings = SchedulerSettings(
        running=arguments.running,
        prompt_tokens=arguments.prompt_tokens,
        steps=arguments.steps,
        repeat=arguments.repeat,
        async_scheduling=arguments.async_scheduling,
        profile=arguments.profile,
    )
    with progress(len(cases(settings))) as done:
        return run_scheduler_benchmark(settings, done), print_scheduler_report


def _measure_frontend(arguments: argparse.Namespace) -> tuple[FrontendReport, Callable[[FrontendReport], None]]:
    check_least(arguments, "repeat", "streams", "tokens")
    settings = FrontendSettings(
        model=arguments.model,
        streams=arguments.streams,
        tokens=arguments.tokens,
        stop=arguments.stop,
        repeat=arguments.repeat,
    )
    with progress(len(frontend_cases(settings))) as done:
        return run_frontend_benchmark(settings, done), print_frontend_report


def _measure_recovery(arguments: argparse.Namespace) -> tuple[RecoveryReport, Callable[[RecoveryReport], None]]:
    check_least(arguments, "streams")
    check_least(arguments, "tokens", least=2 * MARK)
    check_least(arguments, "overhead", least=0)
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
    with tempfile.TemporaryDirectory(prefix="ringpost-bench-") as folder, progress(runs) as done:
        return run_until_sigterm(run_recovery_benchmark(settings, folder, done)), print_recovery_report


def _measure_sessions(arguments: argparse.Namespace) -> tuple[SessionsReport, Callable[[SessionsReport], None]]:
    check_least(arguments, "streams", least=0)
    check_least(arguments, "turns", "idle", "idle_kv")
    check_least(arguments, "chunks", least=2)
    settings = SessionsSettings(
        model=arguments.model,
        streams=arguments.streams,
        turns=arguments.turns,
        chunks=arguments.chunks,
        idle=arguments.idle,
        idle_kv=arguments.idle_kv,
    )
    with progress(SESSIONS_MEASUREMENTS) as done:
        return run_until_sigterm(run_sessions_benchmark(settings, done)), print_sessions_report


def _measure_perplexity(arguments: argparse.Namespace) -> tuple[PerplexityReport, Callable[[PerplexityReport], None]]:
    check_least(arguments, "window", least=2)
    settings = PerplexitySettings(
        model=arguments.model,
        dtype=arguments.dtype,
        quantizations=arguments.quantizations,
        ignore=arguments.ignore,
        window=arguments.window,
    )
    try:
        text = Path(arguments.text).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"no such file: {arguments.text}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"text must be a file in UTF-8, got {arguments.text!r}: {error}") from None
    with progress(len(settings.quantizations)) as done:
        return run_until_sigterm(run_perplexity_benchmark(settings, text, done)), print_perplexity_report


def _measure_startup(arguments: argparse.Namespace) -> tuple[StartupReport, Callable[[StartupReport], None]]:
    check_least(arguments, "repeats")
    settings = StartupSettings(model=arguments.model, repeats=arguments.repeats)
    with unwound_by_sigterm(), progress(1 + settings.repeats) as done:
        return run_startup_benchmark(settings, done), print_startup_report
