"""`ringpost serve`: an engine and the HTTP server over it, until a signal or the engine's end."""

import argparse
import asyncio
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from aiohttp import web

from ..ipc.messages.config import EngineConfig
from .api.app import build_app, gate_of
from .api.gate import Gate
from .api.server import HttpServer, bind
from .config import add_engine_arguments, engine_config, engine_options
from .frontend.async_llm import AsyncLLM
from .frontend.chat_template import import_template_engine
from .logs import configure_logging, logger
from .loops import loop_factory
from .tasks import all_of, first_of

_LAST_WORDS = 1.0  # seconds that handlers get to tell their clients how it ended
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


class StopSignals:
    """SIGINT and SIGTERM: the first asks for an orderly end, the second for one at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.number = 0

    @contextmanager
    def received(self) -> Iterator[None]:
        """The time in which they are caught."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._receive, number)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _receive(self, number: int) -> None:
        (self.second if self.first.is_set() else self.first).set()
        self.number = number


async def serve(config: EngineConfig) -> int:
    """Serve until a signal or the engine's end; returns the exit code.

    Raises ValueError for a port or a model that cannot be used, EngineStartError, and EngineDeadError when the engine died.
    """
    started = time.monotonic()
    signals = StopSignals()
    engine = AsyncLLM(config)
    with bind(config.api) as sock, signals.received():
        try:
            await first_of(_start(engine), signals.first.wait())
            if signals.first.is_set():
                return _EXIT_SIGNAL + signals.number
            app = build_app(engine)
            async with HttpServer(app, config.api, sock) as server:
                names = ", ".join(config.api.served_model_name or (config.model.model,))
                seconds = time.monotonic() - started
                print(f"Ringpost serves {names} at {server.url} (ready after {seconds:.1f} s)", flush=True)  # noqa: T201
                await first_of(signals.first.wait(), engine.wait_ended())
                if signals.first.is_set():
                    await _drain(app, engine, signals, config.runtime.shutdown_timeout)
                else:
                    await engine.check_health()
                return _EXIT_SIGNAL + signals.number if signals.second.is_set() else 0
        finally:
            await _shut_down(engine, signals)


async def _start(engine: AsyncLLM) -> None:
    """Start the engine, and meanwhile load what chats need, so that the first of them does not wait for it."""
    await all_of([engine.start(), asyncio.to_thread(import_template_engine)])


async def _drain(app: web.Application, engine: AsyncLLM, signals: StopSignals, seconds: float) -> None:
    """Refuse what is new, give what runs its time, then end it while the server can still tell its clients."""
    gate = gate_of(app)
    gate.close()
    if gate.inside:
        logger.warning("shutting down: %d requests have %g s to finish; a second signal stops now", gate.inside, seconds)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await first_of(gate.wait_empty(), signals.second.wait(), engine.wait_ended())
    if engine.errored:
        await engine.check_health()  # what died meanwhile is no orderly end
    await all_of([_shut_down(engine, signals), _wait_empty(gate, _LAST_WORDS)])


async def _shut_down(engine: AsyncLLM, signals: StopSignals) -> None:
    """Stop the engine in order, or at once when a second signal comes meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        impatient = tasks.create_task(_kill_at(signals.second, engine))
        await engine.shutdown()
        impatient.cancel()


async def _kill_at(event: asyncio.Event, engine: AsyncLLM) -> None:
    await event.wait()
    engine.kill()


async def _wait_empty(gate: Gate, seconds: float) -> None:
    """Return when no request is in progress, or after so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await gate.wait_empty()
