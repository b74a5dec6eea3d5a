"""A progress bar for weights that take long to load, on the terminal of whoever started the engine."""

import os
import signal
import time
from types import TracebackType
from typing import Self

QUIET_SECONDS = 2.0  # a shorter load shows nothing
_WIDTH = 40


class LoadingBar:
    """Call it with the layers done and in all. It shows nothing without a terminal, or when loading is quick.

    It rewrites one line and never changes the terminal's state, because the worker may be killed at any moment.
    """

    def __init__(self, terminal: int | None, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        """`terminal` is a descriptor, which is closed at the end; None where there is none."""
        self._terminal = terminal
        self._show_from = time.monotonic() + quiet_seconds
        self._shown = -1  # percent

    def __enter__(self) -> Self:
        # A worker is in a background process group, which a terminal may stop for writing.
        if self._terminal is not None:
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._terminal is not None:
            if self._shown >= 0:
                self._write("\r" + " " * (_WIDTH + 30) + "\r")
            os.close(self._terminal)

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is."""
        percent = 100 * done // total
        if self._terminal is None or percent == self._shown or time.monotonic() < self._show_from:
            return
        self._shown = percent
        self._write(f"\rLoading weights [{'#' * (_WIDTH * done // total):{_WIDTH}}] {percent:3} %")

    def _write(self, text: str) -> None:
        assert self._terminal is not None
        try:
            os.write(self._terminal, text.encode())
        except OSError:  # the terminal is gone; loading goes on
            self._show_from = float("inf")
