"""RequestOutputCollector: a one-slot mailbox between the output processor and the consumer of one request."""

import asyncio
from collections.abc import Callable

from ..errors import RequestEnded
from .outputs import CompletionOutput, RequestOutput


class RequestOutputCollector:
    """Merges what the consumer has not taken yet, so that a slow consumer holds one object, never a queue of them.

    Nothing is lost by merging: deltas are joined, and an exception is delivered after the tokens that came before it.
    """

    def __init__(self, request_id: str, *, delta: bool, on_abandon: Callable[[], None]) -> None:
        self.request_id = request_id
        self._delta = delta
        self._on_abandon = on_abandon
        self._output: RequestOutput | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Deliver an output; called by the output processor only."""
        self._output = output if self._output is None else _merge(self._output, output, delta=self._delta)
        self._wake()

    def put_error(self, error: Exception) -> None:
        """Deliver the end of the request by an error. The first error stands."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def get_nowait(self) -> RequestOutput | None:
        """The pending output, or None. Raises the request's error once what came before it has been taken."""
        output, self._output = self._output, None
        if output is None and self._error is not None:
            raise self._error.with_traceback(None)
        if output is not None and output.finished:
            self.put_error(RequestEnded(f"request {self.request_id} has ended; no more outputs come"))
        return output

    async def get(self) -> RequestOutput:
        """The next output. For one consumer at a time; cancelled, it takes nothing.

        Raises the request's error, RequestEnded after the last output or after `close`.
        """
        if self._waiter is not None:
            raise RuntimeError(f"request {self.request_id}: two consumers wait for its outputs at once")
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
        self.put_error(RequestEnded(f"request {self.request_id} was closed by its consumer"))


def _merge(older: RequestOutput, newer: RequestOutput, *, delta: bool) -> RequestOutput:
    """The newer output, with the text and tokens of the older one before its own where outputs are deltas."""
    if delta:
        pending = {completion.index: completion for completion in older.outputs}
        for completion in newer.outputs:
            before = pending.pop(completion.index, None)
            if before is not None:
                completion.text = before.text + completion.text
                completion.token_ids = before.token_ids + completion.token_ids
        newer.outputs += pending.values()
        newer.outputs.sort(key=_index)
    return newer


def _index(completion: CompletionOutput) -> int:
    return completion.index
