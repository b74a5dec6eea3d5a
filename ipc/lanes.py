"""An urgent lane beside a mailbox: two mailboxes of the same messages, for the few that must not wait behind the others."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from .attach import MailboxHandle, attach_receiver, attach_sender
from .errors import Broken, EndOfStream, WouldBlock
from .mailbox import Receiver, Sender
from .parking import wait_any

M = TypeVar("M")


class Lanes(msgspec.Struct, frozen=True):
    """The handles of both lanes."""

    ordered: MailboxHandle
    urgent: MailboxHandle

    def descriptors(self) -> list[int]:
        """Every descriptor of both."""
        return [*self.ordered.descriptors(), *self.urgent.descriptors()]

    def duplicate(self) -> "Lanes":
        """The same lanes under new descriptors of this process."""
        return Lanes(self.ordered.duplicate(), self.urgent.duplicate())

    def mark_gone(self, *, writer: bool, slot: int = 0) -> None:
        """As that of a handle, for both."""
        self.ordered.mark_gone(writer=writer, slot=slot)
        self.urgent.mark_gone(writer=writer, slot=slot)

    def vacate(self, *, writer: bool, slot: int = 0) -> None:
        """As that of a handle, for both."""
        self.ordered.vacate(writer=writer, slot=slot)
        self.urgent.vacate(writer=writer, slot=slot)

    def close(self) -> None:
        """Close both."""
        self.ordered.close()
        self.urgent.close()


class LaneSender(Generic[M]):
    """The sending ends. `ordered` is the mailbox proper."""

    def __init__(self, lanes: Lanes, union: Any, epoch: int = 1, *, checked: bool = False) -> None:
        """Attach both. Raises as `attach_sender`; then all is closed."""
        try:
            self.ordered: Sender[M] = attach_sender(lanes.ordered, union, epoch, checked=checked)
        except BaseException:
            lanes.urgent.close()
            raise
        try:
            self._urgent: Sender[M] = attach_sender(lanes.urgent, union, epoch, checked=checked)
        except BaseException:
            self.ordered.close()
            raise

    def send_urgent(self, message: M) -> bool:
        """Send in the urgent lane at once; False when that is full. Closed, Broken, TypeError as `Sender.send`."""
        with suppress(WouldBlock):
            self._urgent.send_nowait(message)
            return True
        return False

    def close(self) -> None:
        """Close both."""
        self.ordered.close()
        self._urgent.close()


class LaneReceiver(Generic[M]):
    """The receiving ends: as one Receiver that takes urgent messages first, or each for itself."""

    def __init__(self, lanes: Lanes, union: Any, epoch: int = 1) -> None:
        """Attach both. Raises as `attach_receiver`; then all is closed."""
        try:
            self.ordered: Receiver[M] = attach_receiver(lanes.ordered, union, epoch=epoch)
        except BaseException:
            lanes.urgent.close()
            raise
        try:
            self._urgent: Receiver[M] = attach_receiver(lanes.urgent, union, epoch=epoch)
        except BaseException:
            self.ordered.close()
            raise
        self._urgent_ended = False

    @property
    def name(self) -> str:
        """Name of the ordered mailbox."""
        return self.ordered.name

    def receive_urgent(self) -> M | None:
        """The next message of the urgent lane, or None. That lane's end is told by the ordered one, after its messages."""
        if self._urgent_ended or not self._urgent.ready():
            return None
        try:
            return self._urgent.receive_nowait()
        except (EndOfStream, Broken):
            self._urgent_ended = True
            return None

    def receive_nowait(self) -> M:
        """See Receiver: WouldBlock, EndOfStream, Broken, Closed."""
        message = self.receive_urgent()
        return self.ordered.receive_nowait() if message is None else message

    async def receive(self) -> M:
        """See Receiver: EndOfStream, Broken, Closed."""
        while True:
            try:
                return self.receive_nowait()
            except WouldBlock:
                await wait_any([self])

    def arm(self, wake: Callable[[], None]) -> None:
        """See Parkable."""
        self.ordered.arm(wake)
        self._urgent.arm(wake)

    def ready(self) -> bool:
        """See Parkable."""
        return self.ordered.ready() or (not self._urgent_ended and self._urgent.ready())

    def disarm(self, waited: int) -> None:
        """See Parkable."""
        self.ordered.disarm(waited)
        self._urgent.disarm(waited)

    def count_lost_wakeup(self) -> None:
        """See Parkable."""
        (self.ordered if self.ordered.ready() else self._urgent).count_lost_wakeup()

    def close(self) -> None:
        """Close both."""
        self.ordered.close()
        self._urgent.close()
