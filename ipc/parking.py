"""Parking: how a task, or a thread, sleeps until one of several mailbox ends can go on, and never misses the wake-up."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from .atomics import fence
from .blocking import BlockingLoop, blocking_loop

BACKSTOP_SECONDS = 5.0


class Parkable(Protocol):
    """Something a task can wait for."""

    def arm(self, wake: Callable[[], None]) -> None:
        """Make the other side call `wake`, through the loop that runs the caller, from now on.

        Raises RuntimeError while another task waits here: one of the two would never be woken.
        """

    def ready(self) -> bool:
        """Whether there is nothing to wait for (any more)."""

    def disarm(self, waited: int) -> None:
        """The task is awake, after so many nanoseconds; 0 when it had not to sleep."""

    def count_lost_wakeup(self) -> None:
        """It was ready, and nobody had called `wake`."""


async def wait_any(ends: Sequence[Parkable]) -> None:
    """Return when at least one end may be ready; a spurious return is possible. Cancellation leaves nothing armed.

    Under a BlockingLoop the thread sleeps, else the task.
    """
    blocking = blocking_loop()
    sleeper = _Task(ends) if blocking is None else _Thread(ends, blocking)
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


class _Backstop:
    """Bounds what a lost wake-up would cost, for a sleeper that looks every BACKSTOP_SECONDS.

    It believes in one only when it finds the same end ready twice in a row: after the first look the other side may be just
    about to ring.
    """

    def __init__(self, ends: Sequence[Parkable]) -> None:
        self._ends = ends
        self._suspects: list[Parkable] = []

    def finds(self) -> bool:
        """Look, and count what was lost; whether that is anything."""
        ready = [end for end in self._ends if end.ready()]
        lost = [end for end in ready if end in self._suspects]
        for end in lost:
            end.count_lost_wakeup()
        self._suspects = ready
        return bool(lost)


class _Task:
    """A task that sleeps in its event loop."""

    def __init__(self, ends: Sequence[Parkable]) -> None:
        self._backstop = _Backstop(ends)
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

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
        if self._backstop.finds():
            self.wake()
        self._timer = self._loop.call_later(BACKSTOP_SECONDS, self._look)


class _Thread:
    """A thread that sleeps. Only what it calls itself while it does can wake it."""

    def __init__(self, ends: Sequence[Parkable], loop: BlockingLoop) -> None:
        self._backstop = _Backstop(ends)
        self._loop = loop
        self._woken = False

    def wake(self) -> None:
        """End the sleep."""
        self._woken = True

    async def until_woken(self) -> None:
        """Until `wake`."""
        look_at = time.monotonic() + BACKSTOP_SECONDS
        while not self._woken:
            self._loop.park(look_at)
            if not self._woken and time.monotonic() >= look_at:
                self._woken = self._backstop.finds()
                look_at = time.monotonic() + BACKSTOP_SECONDS


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
        if self._wake is not None:
            raise RuntimeError("two tasks wait for one signal")
        self._wake = wake

    def ready(self) -> bool:
        """Whether it was set and not cleared."""
        return self._set

    def disarm(self, waited: int) -> None:
        """See Parkable."""
        self._wake = None

    def count_lost_wakeup(self) -> None:
        """See Parkable."""


class Gate:
    """Open or shut; any number of tasks wait until it opens. Used from one loop."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.is_open = is_open
        self._waiting: list[Signal] = []

    def open(self) -> None:
        """Let everybody through."""
        self.is_open = True
        for signal in self._waiting:
            signal.set()

    def shut(self) -> None:
        """Hold up whoever comes, and those who have not gone through yet."""
        self.is_open = False
        for signal in self._waiting:
            signal.clear()

    async def wait(self) -> None:
        """Return while it is open."""
        while not self.is_open:
            signal = Signal()
            self._waiting.append(signal)
            try:
                await wait_any([signal])
            finally:
                self._waiting.remove(signal)
