"""Which event loop a process runs on."""

import asyncio
from collections.abc import Callable

import uvloop

from ..ipc.messages.config import RuntimeConfig


def loop_factory(config: RuntimeConfig) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop that the option `loop` names; for asyncio.Runner."""
    return uvloop.new_event_loop if config.loop == "uvloop" else asyncio.new_event_loop
