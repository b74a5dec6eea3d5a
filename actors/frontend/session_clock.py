"""IdleClock: when a session has been idle for too long."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class IdleClock:
    """Stands still, runs, or is held, which is stronger. Used from one loop."""

    def __init__(self, seconds: float, on_idle: Callable[[], None]) -> None:
        """`on_idle` is called when it has run for so long."""
        self._seconds = seconds
        self._on_idle = on_idle
        self._runs = False
        self._holders = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Run from now on, from zero."""
        self._runs = True
        self._set()

    def stop(self) -> None:
        """Stand still."""
        self._runs = False
        self._set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within this block it stands still; behind it, it begins at zero if it is to run."""
        self._holders += 1
        self._set()
        try:
            yield
        finally:
            self._holders -= 1
            self._set()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._runs and not self._holders:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._on_idle)
