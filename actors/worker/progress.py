"""A progress bar for weights that take long to load, on the terminal of whoever started the engine."""

import os
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress

QUIET_SECONDS = 2.0  # a shorter load shows nothing


class LoadingBar:
    """Call it with the layers done and in all. It shows nothing without a terminal, or when loading is quick."""

    def __init__(self, terminal: int | None, *, quiet_seconds: float = QUIET_SECONDS) -> None:
        """`terminal` is a descriptor, which is closed at the end; None where there is none."""
        self._file = os.fdopen(terminal, "w") if terminal is not None else None
        self._show_from = time.monotonic() + quiet_seconds
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._file is not None:
            self._file.close()

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is."""
        if self._file is None or time.monotonic() < self._show_from:
            return
        if self._bar is None:
            self._bar = Progress(console=Console(file=self._file), transient=True)
            self._bar.add_task("Loading weights", total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)
