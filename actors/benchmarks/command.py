"""What the benchmarks of the command share: checks of arguments, a bar, and a good end by SIGTERM."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress

from ...ipc.messages.config import RuntimeConfig
from ..loops import loop_factory

R = TypeVar("R")

_EXIT_TERMINATED = 128 + signal.SIGTERM


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add --json and --model."""
    add_json(parser)
    parser.add_argument("--model", default="smollm2", help="alias, directory, .gguf file or hub id (default: %(default)s)")


def check_least(arguments: argparse.Namespace, *names: str, least: int = 1) -> None:
    """Raise ValueError if one of these arguments holds an integer below `least`."""
    for name in names:
        value = getattr(arguments, name)
        for number in value if isinstance(value, list) else [value]:
            if number < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {number}")


def run_until_sigterm(body: Coroutine[Any, Any, R]) -> R:
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
def progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task("measuring", total=total)
        yield lambda: bar.advance(row)


@contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block like Ctrl-C, so that processes and files go."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(_EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
