"""The HTTP side of `ringpost serve`: from an engine that has started to a signal or the engine's end."""

import asyncio
import socket
import time
from contextlib import suppress

from aiohttp import web

from .api.app import build_app, gate_of
from .api.gate import Gate
from .api.server import HttpServer
from .frontend.async_llm import AsyncLLM
from .logs import logger
from .stop_signals import StopSignals, shut_down
from .tasks import all_of, first_of

_LAST_WORDS = 1.0  # seconds that handlers get to tell their clients how it ended


async def serve_http(engine: AsyncLLM, sock: socket.socket, signals: StopSignals, began: float) -> None:
    """Serve on this socket until a signal or the engine's end. `began` is the start of the program, in CLOCK_MONOTONIC.

    Raises ValueError for a port that another server took meanwhile, and EngineDeadError when the engine died.
    """
    app, config = build_app(engine), engine.config
    async with HttpServer(app, config.api, sock) as server:
        names = ", ".join(config.api.served_model_name or (config.model.model,))
        seconds = time.monotonic() - began
        print(f"Ringpost serves {names} at {server.url} (ready after {seconds:.1f} s)", flush=True)  # noqa: T201
        await first_of(signals.first.wait(), engine.wait_ended())
        if signals.first.is_set():
            await _drain(app, engine, signals, config.runtime.shutdown_timeout)
        else:
            await engine.check_health()


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
    await all_of([shut_down(engine, signals), _wait_empty(gate, _LAST_WORDS)])


async def _wait_empty(gate: Gate, seconds: float) -> None:
    """Return when no request is in progress, or after so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await gate.wait_empty()
