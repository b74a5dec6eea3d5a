"""Parking: how a task sleeps until one of several mailbox ends can go on, and never misses the wake-up."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from .atomics import fence


class Parkable(Protocol):
    """Something a task can wait for."""

    def arm(self, wake: Callable[[], None]) -> None:
        """Make the other side call `wake`, through the event loop, from now on."""

    def ready(self) -> bool:
        """Whether there is nothing to wait for (any more)."""

    def disarm(self) -> None:
        """The task is awake."""


async def wait_any(ends: Sequence[Parkable]) -> None:
    """Return when at least one end may be ready; a spurious return is possible. Cancellation leaves nothing armed."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    try:
        for end in ends:
            end.arm(wake)
        fence()  # the parked words before the positions: pairs with the fences in RingWriter and RingReader
        if not any(end.ready() for end in ends):
            await future
    finally:
        for end in ends:
            end.disarm()


class Signal:
    """A wake-up from within the same process: level-triggered, for use beside mailboxes in `wait_any`."""

    def __init__(self) -> None:
        self._set = False
        self._wake: Callable[[], None] | None = None

    def set(self) -> None:
        """Make it ready and wake who waits for it. From the event loop's thread only."""
        self._set = True
        if self._wake is not None:
            self._wake()

    def clear(self) -> None:
        """Make it not ready."""
        self._set = False

    def arm(self, wake: Callable[[], None]) -> None:
        """See Parkable."""
        self._wake = wake

    def ready(self) -> bool:
        """Whether it was set and not cleared."""
        return self._set

    def disarm(self) -> None:
        """See Parkable."""
        self._wake = None
