"""The way in: how many requests are in progress, and whether new ones may begin."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import ServerStopping


class Gate:
    """Lets requests in until it is closed, and tells when the last of them has ended."""

    def __init__(self) -> None:
        self.inside = 0  # requests in progress
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether new requests may begin."""
        return not self._closed.is_set()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The time in which one request is in progress. Raises ServerStopping when closed."""
        if not self.is_open:
            raise ServerStopping("the server is shutting down and takes no new requests")
        self.inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.inside -= 1
            if not self.inside:
                self._empty.set()

    def close(self) -> None:
        """Let nobody in any more."""
        self._closed.set()

    async def wait_closed(self) -> None:
        """Return when nobody is let in any more."""
        await self._closed.wait()

    async def wait_empty(self) -> None:
        """Return when no request is in progress."""
        await self._empty.wait()
