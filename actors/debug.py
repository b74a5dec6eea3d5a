"""What the option `debug_actors` turns on: warnings about slow handlers, full mailboxes, and actors that ask in a circle."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ..ipc.atomics import fence
from ..ipc.errors import WouldBlock
from ..ipc.mailbox import Sender, Statistics
from .base import Actor, Handler, slow_after
from .logs import logger

M = TypeVar("M")
Clock = Callable[[], float]
WARNING_SECONDS = 1.0  # between two warnings about one mailbox


def watch_handlers(actor: Actor, name: str, clock: Clock = time.monotonic) -> None:
    """From now on, warn about every handler of this actor that takes longer than its `slow_after`."""

    def timed(message_type: type, handler: Handler) -> Handler:
        limit = slow_after(handler)

        def handle(actor: Actor, message: object) -> None:
            started = clock()
            try:
                handler(actor, message)
            finally:
                seconds = clock() - started
                if seconds > limit:
                    text = "%s: its handler of %s took %.0f ms, of at most %.0f; its other messages waited"
                    logger.warning(text, name, message_type.__name__, seconds * 1000, limit * 1000)

        return handle

    actor.wrap_handlers(timed)


def watched(sender: Sender[M], *, on: bool) -> Sender[M]:
    """The sender, or with `on` one that warns when its mailbox is full."""
    return WatchedSender(sender) if on else sender


class WatchedSender(Generic[M]):
    """A Sender that also says when a message found no room, at most once in WARNING_SECONDS."""

    def __init__(self, sender: Sender[M], clock: Clock = time.monotonic) -> None:
        self._sender = sender
        self._clock = clock
        self._next_warning = 0.0
        self._times = 0  # since the last warning

    async def send(self, message: M) -> None:
        """See Sender."""
        # A send that finds room never gives the loop a turn, so only one that waits lets this run.
        waits = asyncio.get_running_loop().call_soon(self._found_full, message)
        try:
            await self._sender.send(message)
        finally:
            waits.cancel()

    def send_nowait(self, message: M) -> None:
        """See Sender."""
        try:
            self._sender.send_nowait(message)
        except WouldBlock:
            self._found_full(message)
            raise

    def _found_full(self, message: M) -> None:
        self._times += 1
        now = self._clock()
        if now >= self._next_warning:
            text = "mailbox %s is full: %s finds no room (%d times since the last warning); its reader is slow or stuck"
            logger.warning(text, self.name, type(message).__name__, self._times)
            self._next_warning = now + WARNING_SECONDS
            self._times = 0

    @property
    def name(self) -> str:
        """See Sender."""
        return self._sender.name

    @property
    def largest_nowait(self) -> int:
        """See Sender."""
        return self._sender.largest_nowait

    def arm(self, wake: Callable[[], None]) -> None:
        """See Parkable."""
        self._sender.arm(wake)

    def ready(self) -> bool:
        """See Parkable."""
        return self._sender.ready()

    def disarm(self, waited: int) -> None:
        """See Parkable."""
        self._sender.disarm(waited)

    def count_lost_wakeup(self) -> None:
        """See Parkable."""
        self._sender.count_lost_wakeup()

    def statistics(self) -> Statistics:
        """See Sender."""
        return self._sender.statistics()

    def close(self) -> None:
        """See Sender."""
        self._sender.close()


class AskWatch:
    """Posts whom an actor asks while it waits for the answer, and warns when following that leads back to itself.

    It is a `Watch` of Asks. `set_asks` posts a name, empty for nobody, on the actor's own status board; `asks_of` reads what
    another has posted, empty for nobody or when it is not known.
    """

    def __init__(self, actor: str, set_asks: Callable[[str], None], asks_of: Callable[[str], str]) -> None:
        self._actor = actor
        self._set_asks = set_asks
        self._asks_of = asks_of
        self._asked: list[str] = []  # those whose answers are waited for; the last one is posted

    @contextmanager
    def __call__(self, peer: str) -> Iterator[None]:
        """Ask this actor for the length of the block."""
        self._asked.append(peer)
        self._set_asks(peer)
        try:
            # Post, then look: of two that begin to ask each other, at least one sees the other.
            fence()
            if circle := self._circle(peer):
                logger.warning("actors ask in a circle, so perhaps none gets an answer: %s", " -> ".join(circle))
            yield
        finally:
            self._asked.remove(peer)
            self._set_asks(self._asked[-1] if self._asked else "")

    def _circle(self, peer: str) -> list[str]:
        """The names from this actor back to itself, by way of whom it asks; empty when the way ends elsewhere."""
        names = [self._actor, peer]
        while names[-1] != self._actor:
            following = self._asks_of(names[-1])
            if not following or following in names[1:]:  # nobody, or a circle that this actor is no part of
                return []
            names.append(following)
        return names
