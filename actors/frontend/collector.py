"""RequestOutputCollector: where the consumer of one request, or of one session, takes its outputs."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from ..errors import RequestEnded
from .outputs import RequestOutput


class OutputSource(Protocol):
    """What has outputs to take: a LiveRequest, or the turns of a session."""

    external_id: str

    @property
    def has_output(self) -> bool:
        """Whether `take` has an output."""

    def take(self) -> RequestOutput | None:
        """The output of this moment, or None when there is none."""


class RequestOutputCollector:
    """Wakes the consumer when its request has an output for it.

    Outputs are made when they are taken, and each holds all that has come since the one before: a slow consumer finds one
    large output instead of many, none is lost, and none waits anywhere. An error comes after the tokens before it.
    """

    def __init__(self, live: OutputSource, *, on_abandon: Callable[[], None], kind: str = "request") -> None:
        """`on_abandon` is called when the consumer leaves, also after the end. Errors call what it is of a `kind`."""
        self.request_id = live.external_id
        self._name = f"{kind} {live.external_id}"
        self._live = live
        self._on_abandon = on_abandon
        self.on_news: Callable[[], None] | None = None  # called when there is something to get, for who does not wait in `get`
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Wake the consumer if there is an output; called when something has come, or ended."""
        if self._live.has_output:
            self._wake()

    def put_error(self, error: BaseException) -> None:
        """Deliver the end of the request by an error. The first error stands."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        if self.on_news is not None:
            self.on_news()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def get_nowait(self) -> RequestOutput | None:
        """What has come, or None. Raises the request's error once what came before it has been taken."""
        output = self._live.take()
        if output is None and self._error is not None:
            raise self._error.with_traceback(None)
        if output is not None and output.finished:
            self.put_error(RequestEnded(f"{self._name} has ended; no more outputs come"))
        return output

    async def get(self) -> RequestOutput:
        """The next output. For one consumer at a time; cancelled, it takes nothing.

        Raises the request's error, RequestEnded after the last output or after `close`.
        """
        if self._waiter is not None:
            raise RuntimeError(f"{self._name}: two consumers wait for its outputs at once")
        while (output := self.get_nowait()) is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return output

    def close(self) -> None:
        """The consumer leaves: a request that is not finished is aborted and freed. Never waits; harmless afterwards."""
        self._on_abandon()
        self.put_error(RequestEnded(f"{self._name} was closed by its consumer"))
