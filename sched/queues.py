"""WaitingQueue: requests that hold no resources yet, first come first served."""

from collections import OrderedDict
from collections.abc import Iterator

from .request import Request


class WaitingQueue:
    """All operations are O(1), removal from the middle included."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: OrderedDict[int, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def push(self, request: Request) -> None:
        """Add a request at the end."""
        self._requests[request.request_id] = request

    def peek(self) -> Request:
        """The request whose turn it is. The queue is not empty."""
        return next(iter(self._requests.values()))

    def remove(self, request: Request) -> None:
        """Take out a request, wherever it stands."""
        del self._requests[request.request_id]
