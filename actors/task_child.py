"""ActorTask: an actor as a task of this process, with the option `single_process`; else it would be an ActorProcess."""

import asyncio
import importlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable

from ..ipc.messages.control import Hello
from .base import TaskHost
from .boot import EXIT_FAILED, Boot, Control, Main, tell_failure


def _nobody() -> None:
    """Called when it ends and nobody watches."""


def _main_of(kind: str) -> Main:
    """The body of an actor kind. Takes seconds for the worker, which loads torch."""
    main: Main = importlib.import_module(f"{__package__}.{kind}.main").main
    return main


class ActorTask:
    """See Body. It lives in the event loop that starts it; while it computes, nothing else runs there.

    What it prints goes where this process prints. A failure is told as a process tells it.
    """

    def __init__(self, boot: Boot) -> None:
        self.tail: deque[str] = deque()
        self.pid: int | None = None
        self.exitcode: int | None = None
        self._boot = boot
        self._code = -signal.SIGKILL.value  # unless it ends by itself
        self._on_end = _nobody

    def start(self) -> None:
        """See Body."""
        self._host = TaskHost(self._run(), self._boot.actor, self._ended)
        self.pid = os.getpid()

    async def _run(self) -> None:
        boot = self._boot
        control = Control(boot, time.monotonic())
        try:
            control.sender.send_nowait(Hello(boot.actor, os.getpid(), boot.epoch))
            main = await asyncio.to_thread(_main_of, boot.kind)
            await main(boot, control)
            self._code = 0
        except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor must learn it
            self._code = EXIT_FAILED
            tell_failure(boot, control, error)
        finally:
            control.close()

    def _ended(self) -> None:
        self.exitcode = self._code
        self._on_end()

    @property
    def ending(self) -> str:
        """See Body."""
        return "its task was cancelled" if self.exitcode != 0 else "its task ended"

    def kill(self) -> None:
        """Cancel it: it ends when it waits next."""
        self._host.cancel()

    def reap(self, timeout: float | None) -> bool:
        """See Body. Does not wait, which would keep the task itself from ending."""
        return self.exitcode is not None

    async def wait(self) -> None:
        """See Body."""
        await self._host.wait()

    def watch(self, on_end: Callable[[], None]) -> None:
        """See Body."""
        self._on_end = on_end

    def unwatch(self) -> None:
        """See Body."""
        self._on_end = _nobody

    def close(self) -> None:
        """See Body. Nothing is held."""
