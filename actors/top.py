"""`ringpost top`: what the actors and mailboxes of running engines do, seen from outside and at no cost to them."""

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Collection
from contextlib import ExitStack, suppress

import msgspec
from rich.console import Console
from rich.live import Live

from .engine_look import Look, look
from .engine_view import compare
from .errors import EngineError
from .top_table import report_tables

_INTERVALS = (0.1, 3600.0)  # seconds
_WIDE = 240  # columns where no terminal sets a limit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--pid", type=int, help="only the engine that this process belongs to (default: all of this user)")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks (default 1)")
    parser.add_argument("--once", action="store_true", help="look twice, print once and end, as it does without a terminal")
    parser.add_argument("--json", action="store_true", help="the same as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Body of the command; returns its exit code. Raises EngineError when there is no such engine."""
    least, most = _INTERVALS
    if not least <= arguments.interval <= most:
        raise ValueError(f"interval must be a number of seconds from {least:g} to {most:g}, got {arguments.interval}")
    first = _look(arguments.pid)
    at_terminal = sys.stdout.isatty()
    console = Console(width=None if at_terminal else _WIDE)
    if at_terminal and console.is_interactive and not (arguments.once or arguments.json):
        _watch(console, first, arguments.interval, everyone=arguments.pid is None)
        return 0
    _wait(first.pids, arguments.interval)
    report = compare(first, _look(arguments.pid))
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        console.print(report_tables(report))
    return 0


def _look(pid: int | None) -> Look:
    seen = look(None if pid is None else [pid])
    if not seen.engines:
        which = "no engine runs that this user may look at" if pid is None else f"no running engine has a process {pid}"
        raise EngineError(which)
    return seen


def _watch(console: Console, seen: Look, interval: float, *, everyone: bool) -> None:
    """Show the engines until the last of them has ended: those seen first, or everyone's."""
    signal.signal(signal.SIGTERM, _leave)
    before = seen
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while seen.engines:
            live.update(report_tables(compare(before, seen)), refresh=True)
            _wait(seen.pids, interval)
            before, seen = seen, look(None if everyone else seen.pids)
    print("ringpost top: the engine has ended", file=sys.stderr)  # noqa: T201


def _leave(number: int, _: object) -> None:
    """End so that the terminal is left as it was."""
    raise SystemExit(128 + number)


def _wait(pids: Collection[int], seconds: float) -> None:
    """Return after this time, or as soon as all the processes have ended."""
    deadline = time.monotonic() + seconds
    with ExitStack() as handles:
        poll, watched = select.poll(), set()
        for pid in pids:
            with suppress(OSError):  # it has ended
                watched.add(handle := os.pidfd_open(pid))
                handles.callback(os.close, handle)
                poll.register(handle, select.POLLIN)
        while watched and (left := deadline - time.monotonic()) > 0:
            for handle, _ in poll.poll(left * 1000):
                poll.unregister(handle)
                watched.discard(handle)
