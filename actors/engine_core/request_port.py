"""Where the core takes a frontend's requests: both lanes, in the order in which they are to take effect."""

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from ...ipc.errors import EndOfStream, PeerGone, WouldBlock
from ...ipc.lanes import LaneReceiver
from ...ipc.messages.requests import Abort, AddRequest, RequestMessage, Resume
from ...ipc.parking import Parkable
from ...sched.arrivals import sibling_request


class RequestPort:
    """Requests of one frontend.

    An Abort comes in both lanes. The urgent copy takes effect at once, and leaves a mark by which an AddRequest that is still
    on its way is dropped, and so is a sibling; the ordered copy, behind which no such one can be, clears the mark. A core that
    was restarted passes over what its predecessor was sent, until the frontend's Resume shows that it knows of the restart.
    """

    def __init__(self, receiver: LaneReceiver[RequestMessage], epoch: int = 1) -> None:
        """`epoch` is the core's own; the first one has no predecessor."""
        self._receiver = receiver
        self._epoch = epoch
        self._resumed = epoch == 1
        self._aborted: set[int] = set()  # requests with a mark
        self.ended = False  # the frontend has closed it or died, and nothing more will come

    @property
    def end(self) -> Parkable:
        """What to wait for to get more."""
        return self._receiver

    def messages(self) -> Iterator[RequestMessage]:
        """Everything that waits, without waiting. Raises Broken when a record is corrupt."""
        yield from self._urgent()
        while True:
            try:
                message = self._receiver.ordered.receive_nowait()
            except WouldBlock:
                return
            except (EndOfStream, PeerGone):
                self.ended = True
                return
            if isinstance(message, Abort):
                yield from self._urgent()  # the other copy was sent before this one: its mark must not come after
                self._aborted.discard(message.request)
            if self._is_passed_over(message):
                continue
            if self._aborted and isinstance(message, AddRequest):
                wanted = without(message, self._aborted)
                if wanted is None:
                    continue
                message = wanted
            yield message

    def _urgent(self) -> Iterator[RequestMessage]:
        while (message := self._receiver.receive_urgent()) is not None:
            if isinstance(message, Abort):
                self._aborted.add(message.request)
            if self._resumed:
                yield message

    def _is_passed_over(self, message: RequestMessage) -> bool:
        if not self._resumed:
            self._resumed = isinstance(message, Resume) and message.epoch == self._epoch
            return not self._resumed
        return False


def without(message: AddRequest, aborted: Collection[int]) -> AddRequest | None:
    """What is left of a request and its siblings; None if it is nothing."""
    siblings = tuple(sibling for sibling in message.siblings if sibling.request not in aborted)
    if message.request not in aborted:
        return message if siblings == message.siblings else replace(message, siblings=siblings)
    if not siblings:
        return None
    return replace(sibling_request(message, siblings[0]), siblings=siblings[1:])
