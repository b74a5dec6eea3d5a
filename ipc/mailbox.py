"""The contract of a mailbox: a Sender at one end, a Receiver at the other, whatever carries the messages between them.

`attach.py` makes the ends. Messages are of one closed union, arrive once and in the order they were sent, and their number
is bounded by the mailbox's capacity in bytes. An end is used from one event loop, and one task at a time
waits at a receiving end.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from .parking import Parkable

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
M_co = TypeVar("M_co", covariant=True)


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """What one side of a mailbox has done since the mailbox was made, its restarts included."""

    messages: int  # sent, or received
    bytes: int  # of records, with their headers
    waits: int  # how often it had to wait: for room, or for a message
    wait_seconds: float  # in all those waits
    lost_wakeups: int  # waits that only the backstop timer ended: a fault of ours, always 0


class Sender(Parkable, Protocol[M_contra]):
    """The sending end."""

    @property
    def name(self) -> str:
        """Name of the mailbox, for errors and logs."""

    @property
    def largest_nowait(self) -> int:
        """Encoded bytes of the largest message that `send_nowait` can take."""

    def send_nowait(self, message: M_contra) -> None:
        """Send at once or raise WouldBlock, also while a `send` waits. Closed, Broken, MessageTooLarge, TypeError as `send`."""

    async def send(self, message: M_contra) -> None:
        """Send, waiting for room.

        Raises Closed after `close`, Broken when no receiver is left, MessageTooLarge above MAX_MESSAGE bytes, TypeError for a
        message outside the union. Cancelled before it returns, the message is not received by anyone.
        """

    def statistics(self) -> Statistics:
        """What this side has done so far. Raises Closed after `close`."""

    def close(self) -> None:
        """End the stream: receivers get what was sent, then EndOfStream. Whoever waits at this end gets Closed.

        A second call does nothing.
        """


class Receiver(Parkable, Protocol[M_co]):
    """The receiving end."""

    @property
    def name(self) -> str:
        """Name of the mailbox, for errors and logs."""

    def receive_nowait(self) -> M_co:
        """The next message. Raises WouldBlock when there is none yet; EndOfStream, Broken, Closed as `receive`."""

    def receive_many_nowait(self, limit: int) -> Sequence[M_co]:
        """What is there, 1 to `limit` messages, for less than so many calls of `receive_nowait`, whose errors it raises.

        `limit` is at least 1. It may return fewer than are there. What is behind them, WouldBlock, EndOfStream and Broken
        included, is left to the next call.
        """

    async def receive(self) -> M_co:
        """The next message, waiting for it. Cancelled, it takes nothing.

        Raises EndOfStream after the last message of a sender that closed, Broken when the sender died or a record is corrupt,
        Closed after `close`.
        """

    def statistics(self) -> Statistics:
        """What this side has done so far. Raises Closed after `close`."""

    def close(self) -> None:
        """Leave: the sender no longer waits for this end, and whoever waits at it gets Closed. A second call does nothing."""
