"""An eventfd that wakes a process which parked, through its event loop."""

import os
from collections.abc import Callable
from contextlib import suppress

from .blocking import ReaderLoop, reader_loop
from .segment import above_standard


def create_doorbell() -> int:
    """Make the descriptor of a doorbell, closed on exec."""
    return above_standard(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))


def ring_doorbell(fd: int) -> None:
    """Wake whoever listens to the bell, now or when it next listens."""
    with suppress(BlockingIOError):  # the counter is full, so the bell is ringing already
        os.eventfd_write(fd, 1)


class Doorbell:
    """The listening end. `close` it before the descriptor is closed: a reused number would else never wake its next owner."""

    def __init__(self, fd: int, on_ring: Callable[[], None]) -> None:
        self._fd = fd
        self._on_ring = on_ring
        self._loop: ReaderLoop | None = None

    def listen(self) -> None:
        """Start calling `on_ring` from the loop that runs the caller. A second call does nothing."""
        if self._loop is None:
            self._loop = reader_loop()
            self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:  # another wake-up of the loop took it
            return
        self._on_ring()

    def close(self) -> None:
        """Leave the event loop."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._loop = None
