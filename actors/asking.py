"""Asking another actor: a message with a number, and the one reply that bears it. (Telling is a mailbox's `send` alone.)"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Protocol, TypeVar

from .errors import EngineGenerateError, NoAnswerError, copy_of

M = TypeVar("M")

Watch = Callable[[str], AbstractContextManager[None]]  # entered with the name of who is asked, for as long as that takes


class Reply(Protocol):
    """What every answer says."""

    @property
    def ok(self) -> bool:
        """Whether the question was answered; else it was refused."""

    @property
    def message(self) -> str:
        """Why it was refused."""


R = TypeVar("R", bound=Reply)


def unwatched(_: str) -> AbstractContextManager[None]:
    """Nobody looks at who asks whom."""
    return nullcontext()


class Asks(Generic[R]):
    """The questions to one actor that wait for their answers, by number. Used from one event loop."""

    def __init__(self, peer: str, watch: Watch = unwatched) -> None:
        """`peer` is the name of the actor asked, for errors and for `watch`."""
        self._peer = peer
        self._watch = watch
        self._waiting: dict[int, asyncio.Future[R]] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def ask(self, send: Callable[[M], Awaitable[None]], message: M, number: int, deadline_seconds: float) -> R:
        """Send a message that bears `number`, and wait for the reply that bears it too.

        Raises NoAnswerError when sending and answering took longer than `deadline_seconds`, EngineGenerateError when the peer
        refuses, the error of `fail` when the peer ended, and what `send` raises. However it ends, nothing of it is left; a
        reply that comes later is ignored.
        """
        assert number not in self._waiting, f"question {number} to {self._peer} waits already"
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future  # before it is sent: the answer may be there when `send` returns
        deadline = asyncio.timeout(deadline_seconds)
        try:
            with self._watch(self._peer):
                async with deadline:
                    await send(message)
                    reply = await future
        except TimeoutError:
            if not deadline.expired():
                raise
            what = type(message).__name__
            raise NoAnswerError(f"{self._peer} has not answered {what} in {deadline_seconds:g} s") from None
        finally:
            del self._waiting[number]
            if future.done() and not future.cancelled():
                future.exception()  # seen, also where `send` failed first
        if not reply.ok:
            raise EngineGenerateError(reply.message)
        return reply

    def answer(self, number: int, reply: R) -> None:
        """Hand a reply to the question that waits for it, if one still does."""
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(reply)

    def fail(self, error: Exception) -> None:
        """The peer ended: every question that waits ends by a copy of this error."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(copy_of(error))
