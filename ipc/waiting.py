"""How to wait, apart from what is waited for: park in the event loop, spin, or decide by what was measured."""

import time
from collections.abc import Sequence
from typing import Protocol

from .parking import Parkable, wait_any

SPIN_NS = 100_000  # longer than two wake-ups through the kernel never pays


class WaitStrategy(Protocol):
    """One way to wait. An object belongs to one place that waits, since it may learn there."""

    async def wait(self, ends: Sequence[Parkable]) -> None:
        """As `wait_any`."""


class Park:
    """Sleep at once. Costs a wake-up through the kernel, and nothing while nothing comes."""

    async def wait(self, ends: Sequence[Parkable]) -> None:
        """As `wait_any`."""
        await wait_any(ends)


class Spin:
    """Look again and again for a bounded time, then sleep. For a process with a core of its own and an answer that is near.

    The event loop does nothing else meanwhile.
    """

    def __init__(self, nanoseconds: int = SPIN_NS) -> None:
        self._nanoseconds = nanoseconds

    async def wait(self, ends: Sequence[Parkable]) -> None:
        """As `wait_any`."""
        if not spin(ends, self._nanoseconds):
            await wait_any(ends)


class Adaptive:
    """Spin while the gaps between messages, as measured here, are mostly shorter than a spin; else sleep at once."""

    _WEIGHT = 8  # of the past against the newest gap

    def __init__(self, nanoseconds: int = SPIN_NS) -> None:
        self._nanoseconds = nanoseconds
        self._gap = 2.0 * nanoseconds  # running mean; sleeps first

    async def wait(self, ends: Sequence[Parkable]) -> None:
        """As `wait_any`."""
        began = time.monotonic_ns()
        if self._gap > self._nanoseconds or not spin(ends, self._nanoseconds):
            await wait_any(ends)
        # One long silence must not outweigh what came before and comes after it.
        gap = min(time.monotonic_ns() - began, 4 * self._nanoseconds)
        self._gap += (gap - self._gap) / self._WEIGHT


def spin(ends: Sequence[Parkable], nanoseconds: int) -> bool:
    """Look until an end is ready, but no longer than that; whether one is."""
    deadline = time.monotonic_ns() + nanoseconds
    while not any(end.ready() for end in ends):
        if time.monotonic_ns() > deadline:
            return False
    return True
