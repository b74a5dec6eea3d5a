"""`ringpost serve`: an engine and the HTTP server over it, until a signal or the engine's end."""

import argparse
import asyncio
import os
import resource
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ..ipc.messages.config import EngineConfig
from .api.listening import bind
from .boot import loading
from .config import add_engine_arguments, engine_config, engine_options
from .frontend.async_llm import AsyncLLM
from .frontend.chat_template import import_template_engine
from .logs import configure_logging, logger
from .loops import loop_factory
from .start_phases import EXEC, StartPhases, process_age
from .stop_signals import StopSignals, shut_down
from .tasks import all_of, first_of

_OTHER_FILES = 256  # open beside connections: mailboxes, libraries, files being read
_EXIT_SIGNAL = 128  # plus the signal's number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    names = parser.add_mutually_exclusive_group()
    text = "alias, directory, .gguf file or hub id of the model (default: smollm2)"
    names.add_argument("model_tag", metavar="MODEL", nargs="?", help=text)
    names.add_argument("--model", default="smollm2", help="the same, as an option")
    add_engine_arguments(parser, server=True)


def run(arguments: argparse.Namespace) -> int:
    """Body of the command; returns its exit code."""
    options = engine_options(arguments)
    if arguments.model_tag is not None:
        options["model"] = arguments.model_tag
    options.setdefault("api_key", os.environ.get("RINGPOST_API_KEY") or None)
    config = engine_config(**options)
    configure_logging("api0", config.runtime)
    _raise_file_limit(config.api.max_connections)
    with asyncio.Runner(loop_factory=loop_factory(config.runtime)) as runner:
        return runner.run(serve(config))


def _raise_file_limit(connections: int) -> None:
    """Let this process open as many files as the system allows it; each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        if limit < wanted:
            logger.warning("max_connections=%d needs %d open files; this process may have %d", connections, wanted, limit)


async def serve(config: EngineConfig) -> int:
    """Serve until a signal or the engine's end; returns the exit code.

    Raises ValueError for a port or a model that cannot be used, EngineStartError, and EngineDeadError when the engine died.
    """
    began = time.monotonic()
    signals = StopSignals()
    engine = AsyncLLM(config)
    engine.stats.started("frontend0", {EXEC: process_age()})
    with bind(config.api) as sock, signals.received():
        try:
            with loading():
                await first_of(_start(engine), signals.first.wait())
            if signals.first.is_set():
                return _EXIT_SIGNAL + signals.number
            await _load_service()(engine, sock, signals, began)
            return _EXIT_SIGNAL + signals.number if signals.second.is_set() else 0
        finally:
            await shut_down(engine, signals)


async def _start(engine: AsyncLLM) -> None:
    """Start the engine and, while its processes start, load what serves HTTP."""
    await all_of([engine.start(), _load_meanwhile(engine)])


async def _load_meanwhile(engine: AsyncLLM) -> None:
    await engine.wait_launched()  # before, it would only hold the processes up
    phases = StartPhases()
    await asyncio.to_thread(_load_service)
    phases.end("HTTP and templates, meanwhile")
    await engine.start()  # it tells of its own phases first
    engine.stats.started("frontend0", phases.seconds)


def _load_service() -> Callable[[AsyncLLM, socket.socket, StopSignals, float], Coroutine[Any, Any, None]]:
    """What serves HTTP, with the engine of chat templates, so that the first chat does not wait for it."""
    from .http_service import serve_http  # noqa: PLC0415

    import_template_engine()
    return serve_http
