"""Frontends: what each of them waits for, and how it is told."""

from collections.abc import Sequence

from ...ipc.messages.failure import Failure
from ...ipc.messages.outputs import TokenDelta, UtilityReply
from ...ipc.messages.requests import FRONTEND_SHIFT
from .output_port import OutputPort
from .stamps import Stamps


class Frontends:
    """The way to each frontend, by the number of a request or call, and its unfinished requests."""

    def __init__(self, outputs: Sequence[OutputPort]) -> None:
        """`outputs` are in the order of the frontends' numbers."""
        self.outputs = outputs
        self.stamps = Stamps()
        self.live: list[set[int]] = [set() for _ in outputs]  # unfinished requests, by frontend

    def expect(self, requests: Sequence[int]) -> None:
        """Requests of one frontend have come."""
        self.live[requests[0] >> FRONTEND_SHIFT].update(requests)

    def forget(self, request: int) -> None:
        """A request has ended."""
        self.live[request >> FRONTEND_SHIFT].discard(request)
        self.stamps.forget(request)

    def hush(self, request: int) -> None:
        """A request has ended that nobody waits for any more."""
        self.forget(request)
        self._port(request).forget(request)

    def put_delta(self, delta: TokenDelta) -> None:
        """Tell the news of a request."""
        if delta.finish_reason is not None:
            self.forget(delta.request)
        self._port(delta.request).put_deltas([delta])

    def put_failure(self, request: int, failure: Failure) -> None:
        """Tell why a request has ended."""
        self.forget(request)
        self._port(request).put(failure)

    def reply(self, *replies: UtilityReply) -> None:
        """Answer calls."""
        for reply in replies:
            self._port(reply.call).put(reply)

    def _port(self, number: int) -> OutputPort:
        return self.outputs[number >> FRONTEND_SHIFT]
