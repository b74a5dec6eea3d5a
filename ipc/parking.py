"""Parking: how a task sleeps until one of several mailbox ends can go on, and never misses the wake-up."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from .atomics import fence

BACKSTOP_SECONDS = 5.0


class Parkable(Protocol):
    """Something a task can wait for."""

    def arm(self, wake: Callable[[], None]) -> None:
        """Make the other side call `wake`, through the event loop, from now on.

        Raises RuntimeError while another task waits here: one of the two would never be woken.
        """

    def ready(self) -> bool:
        """Whether there is nothing to wait for (any more)."""

    def disarm(self, waited: int) -> None:
        """The task is awake, after so many nanoseconds; 0 when it had not to sleep."""

    def count_lost_wakeup(self) -> None:
        """It was ready, and nobody had called `wake`."""


async def wait_any(ends: Sequence[Parkable]) -> None:
    """Return when at least one end may be ready; a spurious return is possible. Cancellation leaves nothing armed."""
    sleeper = _Sleeper(ends)
    armed: list[Parkable] = []
    began = 0
    try:
        for end in ends:
            end.arm(sleeper.wake)
            armed.append(end)
        fence()  # order: wake, side B: the parked words before the positions
        if not any(end.ready() for end in ends):
            began = time.monotonic_ns()
            await sleeper.until_woken()
    finally:
        waited = time.monotonic_ns() - began if began else 0
        for end in armed:
            end.disarm(waited)


class _Sleeper:
    """A task that sleeps, and the backstop timer that bounds what a lost wake-up would cost.

    The timer believes in a lost wake-up only when it finds the same end ready twice in a row: after the first look the other
    side may be just about to ring.
    """

    def __init__(self, ends: Sequence[Parkable]) -> None:
        self._ends = ends
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self._suspects: list[Parkable] = []

    def wake(self) -> None:
        """End the sleep."""
        if not self._future.done():
            self._future.set_result(None)

    async def until_woken(self) -> None:
        """Until `wake`."""
        self._timer = self._loop.call_later(BACKSTOP_SECONDS, self._look)
        try:
            await self._future
        finally:
            self._timer.cancel()

    def _look(self) -> None:
        if self._future.done():  # in this turn of the loop, after the timer had run out
            return
        ready = [end for end in self._ends if end.ready()]
        lost = [end for end in ready if end in self._suspects]
        for end in lost:
            end.count_lost_wakeup()
        if lost:
            self.wake()
        self._suspects = ready
        self._timer = self._loop.call_later(BACKSTOP_SECONDS, self._look)


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

    def disarm(self, waited: int) -> None:
        """See Parkable."""
        self._wake = None

    def count_lost_wakeup(self) -> None:
        """See Parkable."""
