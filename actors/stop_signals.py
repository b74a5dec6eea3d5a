"""StopSignals: SIGINT and SIGTERM as events of a server, and how its engine ends by them."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from .frontend.async_llm import AsyncLLM


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


async def shut_down(engine: AsyncLLM, signals: StopSignals) -> None:
    """Stop the engine in order, or at once when a second signal comes meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        impatient = tasks.create_task(_kill_at(signals.second, engine))
        await engine.shutdown()
        impatient.cancel()


async def _kill_at(event: asyncio.Event, engine: AsyncLLM) -> None:
    await event.wait()
    engine.kill()
