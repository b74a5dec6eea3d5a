"""Asking another actor: a message with a number, and the one reply that bears it. (Telling is a mailbox's `send` alone.)"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Protocol, TypeVar

from ..ipc.blocking import time_limit
from ..ipc.parking import Parkable, Signal, wait_any
from .errors import EngineGenerateError, NoAnswerError, copy_of

M = TypeVar("M")

Watch = Callable[[str], AbstractContextManager[None]]  # entered with the name of who is asked, for as long as that takes
Wait = Callable[[Sequence[Parkable]], Awaitable[None]]  # as `wait_any`


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


class _Question(Generic[R]):
    """One that waits."""

    def __init__(self) -> None:
        self.settled = Signal()
        self.reply: R | None = None
        self.error: Exception | None = None


class Asks(Generic[R]):
    """The questions to one actor that wait for their answers, by number. Used from one loop."""

    def __init__(self, peer: str, watch: Watch = unwatched, wait: Wait = wait_any) -> None:
        """`peer` is the name of the actor asked, for errors and for `watch`. `wait` is how to wait for `answer`: where no
        other task would call that, it has to.
        """
        self._peer = peer
        self._watch = watch
        self._wait = wait
        self._waiting: dict[int, _Question[R]] = {}

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
        question: _Question[R] = _Question()
        self._waiting[number] = question  # before it is sent: the answer may be there when `send` returns
        limit = time_limit(deadline_seconds)
        try:
            with self._watch(self._peer):
                async with limit:
                    await send(message)
                    while not question.settled.ready():
                        await self._wait([question.settled])
        except TimeoutError:
            if not limit.expired():
                raise
            what = type(message).__name__
            raise NoAnswerError(f"{self._peer} has not answered {what} in {deadline_seconds:g} s") from None
        finally:
            del self._waiting[number]
        if question.error is not None:
            raise question.error
        assert question.reply is not None
        if not question.reply.ok:
            raise EngineGenerateError(question.reply.message)
        return question.reply

    def answer(self, number: int, reply: R) -> None:
        """Hand a reply to the question that waits for it, if one still does."""
        question = self._waiting.get(number)
        if question is not None and not question.settled.ready():
            question.reply = reply
            question.settled.set()

    def fail(self, error: Exception) -> None:
        """The peer ended: every question that waits ends by a copy of this error."""
        for question in self._waiting.values():
            if not question.settled.ready():
                question.error = copy_of(error)
                question.settled.set()
