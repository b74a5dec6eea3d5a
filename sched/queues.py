"""WaitingQueue: requests that wait for a row."""

from collections import OrderedDict
from collections.abc import Iterator

from .request import Request


class WaitingQueue:
    """Those that had a row before come first, then the new ones; first come, first served within each kind.

    All operations are O(1), removal from the middle included.
    """

    __slots__ = ("_new", "_returning")

    def __init__(self) -> None:
        self._returning: OrderedDict[int, Request] = OrderedDict()
        self._new: OrderedDict[int, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._returning) + len(self._new)

    def __iter__(self) -> Iterator[Request]:
        yield from self._returning.values()
        yield from self._new.values()

    def push(self, request: Request) -> None:
        """Add a new request at the end."""
        self._new[request.request_id] = request

    def push_returning(self, request: Request) -> None:
        """Add a request before all new ones."""
        self._returning[request.request_id] = request

    def peek(self) -> Request:
        """The request whose turn it is. The queue is not empty."""
        return next(iter(self))

    def last_returning_first(self) -> Iterator[Request]:
        """Those that were pushed as returning, backwards."""
        return reversed(self._returning.values())

    def remove(self, request: Request) -> None:
        """Take out a request, wherever it stands."""
        kind = self._returning if request.request_id in self._returning else self._new
        del kind[request.request_id]
