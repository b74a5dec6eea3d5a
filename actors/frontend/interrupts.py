"""Interrupts: Ctrl-C, held back until what was in hand is in order."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Holds Ctrl-C back in blocks of `held`. A second one is not held: something hangs, and its user has had enough."""

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        """`on_interrupt` is called within the signal's handler: it ends the wait of whoever then calls `check`."""
        self._on_interrupt = on_interrupt
        self._pending = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Ctrl-C raises KeyboardInterrupt in `check`, or where the block ends.

        Only in the main thread, where alone it is raised, and unless the program handles it in a way of its own.
        """
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.check()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._pending:
            raise KeyboardInterrupt
        self._pending = True
        self._on_interrupt()

    def check(self) -> None:
        """Raise KeyboardInterrupt if one was held back."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt
