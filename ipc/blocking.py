"""BlockingLoop: runs coroutines that wait for mailboxes alone to their end in a thread, be there an event loop or not."""

import asyncio
import select
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ReaderLoop(Protocol):
    """What a doorbell needs of an event loop."""

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> Any:
        """Call this whenever the descriptor is readable."""

    def remove_reader(self, fd: int, /) -> Any:
        """Stop that."""

    def is_closed(self) -> bool:
        """Whether nothing is called any more."""


class BlockingLoop:
    """Takes the place of an event loop for one owner, who calls `run` from one thread at a time.

    What a coroutine waits for is one `wait_any` at a time, which sleeps here: no task runs meanwhile, but the callbacks of
    descriptors do. Nothing is held that would have to be closed.

    Attributes:
        deadline: when what runs gets a TimeoutError, in CLOCK_MONOTONIC; set by `time_limit`.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._readers: dict[int, Callable[[], None]] = {}
        self.deadline: float | None = None

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Call this, while a coroutine waits, whenever the descriptor is readable."""
        self._readers[fd] = callback
        self._poll.register(fd, select.POLLIN)

    def remove_reader(self, fd: int) -> None:
        """Stop that."""
        if self._readers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def is_closed(self) -> bool:
        """Never: there is nothing to close."""
        return False

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end and return its result. RuntimeError when it awaits anything but mailboxes."""
        outer, _here.loop = _here.loop, self
        try:
            coroutine.send(None)
        except StopIteration as end:
            result: R = end.value
            return result
        else:
            raise RuntimeError(f"{coroutine!r} awaits something that needs an event loop")
        finally:
            coroutine.close()
            _here.loop = outer

    def park(self, until: float) -> None:
        """Sleep until a descriptor is readable, whose callback is called, or until this moment of CLOCK_MONOTONIC.

        Raises TimeoutError when `deadline` has passed, and what a callback raises, which so ends what runs.
        """
        end = until if self.deadline is None else min(until, self.deadline)
        for fd, _ in self._poll.poll(max(0.0, end - time.monotonic()) * 1000):
            callback = self._readers.get(fd)  # none where one before it has removed it
            if callback is not None:
                callback()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise TimeoutError


class _Here(threading.local):
    """The loop that runs a coroutine in this thread right now. A loop of asyncio that runs here too does not matter."""

    loop: BlockingLoop | None = None


_here = _Here()


def blocking_loop() -> BlockingLoop | None:
    """The BlockingLoop that runs the caller; None where an event loop does."""
    return _here.loop


def reader_loop() -> ReaderLoop:
    """Whichever loop runs the caller."""
    return _here.loop or asyncio.get_running_loop()


class TimeLimit(Protocol):
    """See `asyncio.timeout`."""

    async def __aenter__(self) -> Any:
        """From now on."""

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None, /
    ) -> bool | None:
        """Until now."""

    def expired(self) -> bool:
        """Whether the time was over before the block was."""


class _BlockingLimit:
    """A TimeLimit in a BlockingLoop. Limits nest; the earliest counts."""

    def __init__(self, loop: BlockingLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._expired = False

    async def __aenter__(self) -> None:
        self._outer = self._loop.deadline
        self._end = time.monotonic() + self._seconds
        self._loop.deadline = self._end if self._outer is None else min(self._end, self._outer)

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.deadline = self._outer
        self._expired = kind is TimeoutError and time.monotonic() >= self._end

    def expired(self) -> bool:
        """See TimeLimit."""
        return self._expired


def time_limit(seconds: float) -> TimeLimit:
    """`asyncio.timeout`, in whichever loop runs the caller: `async with time_limit(5):` raises TimeoutError."""
    return asyncio.timeout(seconds) if _here.loop is None else _BlockingLimit(_here.loop, seconds)


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """The result of a function that takes long: in a thread where an event loop must go on, else at once."""
    if _here.loop is not None:
        return function(*args, **kwargs)
    return await asyncio.to_thread(partial(function, *args, **kwargs))
