"""CoreClient: the frontend's ends of the mailboxes to and from one engine core."""

import asyncio
from collections import deque

from ...ipc.errors import Broken, Closed, WouldBlock
from ...ipc.mailbox import Receiver, Sender
from ...ipc.messages.outputs import OutputMessage, UtilityReply
from ...ipc.messages.requests import FRONTEND_SHIFT, Abort, RequestMessage
from ...ipc.parking import Signal, wait_any
from ...ipc.ring import RingHandle
from ..errors import EngineDeadError, EngineGenerateError


class CoreClient:
    """Numbers requests and calls, and sends in order. Used from one event loop."""

    def __init__(self, requests: RingHandle, outputs: RingHandle, frontend: int = 0) -> None:
        self._sender: Sender[RequestMessage] = Sender(requests, RequestMessage)
        self._receiver: Receiver[OutputMessage] = Receiver(outputs, OutputMessage)
        self._last = frontend << FRONTEND_SHIFT
        self._aborts: deque[Abort] = deque()  # found no room; `flush_aborts` sends them in order
        self._aborts_wait = Signal()
        self._replies: dict[int, asyncio.Future[UtilityReply]] = {}
        self._error: Exception = EngineDeadError("the engine was shut down")  # of whoever sends after `close`
        self._closed = asyncio.Event()

    def next_number(self) -> int:
        """A fresh number for a request or a call, unique in the engine."""
        self._last += 1
        return self._last

    async def send(self, message: RequestMessage) -> None:
        """Send, waiting for room: a core that is busy holds its frontends back.

        When the core is gone, raises the error of `fail_calls`, once that is known.
        """
        try:
            await self._sender.send(message)
        except (Closed, Broken):
            await self._closed.wait()
            raise type(self._error)(*self._error.args) from None  # one each: raising an exception writes to it

    def abort(self, request: int) -> None:
        """Have the core drop a request. Never waits: without room it is sent by `flush_aborts`."""
        try:
            if self._aborts:
                raise WouldBlock("earlier ones wait")
            self._sender.send_nowait(Abort(request))
        except (Closed, Broken):  # no core, no request
            pass
        except WouldBlock:
            self._aborts.append(Abort(request))
            self._aborts_wait.set()

    async def flush_aborts(self) -> None:
        """Send the aborts that found no room, for ever. One task of the frontend runs it."""
        while True:
            await wait_any([self._aborts_wait])
            self._aborts_wait.clear()
            while self._aborts:
                await self._sender.send(self._aborts[0])
                self._aborts.popleft()

    async def receive(self) -> OutputMessage:
        """The next message of the core."""
        return await self._receiver.receive()

    async def call(self, message: RequestMessage, number: int) -> UtilityReply:
        """Send a utility call and wait for its answer. Raises EngineGenerateError when the core refuses it."""
        future: asyncio.Future[UtilityReply] = asyncio.get_running_loop().create_future()
        self._replies[number] = future
        try:
            await self.send(message)
            reply = await future
        finally:
            del self._replies[number]
            if future.done() and not future.cancelled():
                future.exception()  # seen, also where `send` failed first
        if not reply.ok:
            raise EngineGenerateError(reply.message)
        return reply

    def answer(self, reply: UtilityReply) -> None:
        """Hand a reply to the call that waits for it, if it still does."""
        future = self._replies.get(reply.call)
        if future is not None and not future.done():
            future.set_result(reply)

    def fail_calls(self, error: Exception) -> None:
        """End every call that waits by an error, which is also that of whoever sends after `close`."""
        self._error = error
        for future in self._replies.values():
            if not future.done():
                future.set_exception(type(error)(*error.args))

    def close(self) -> None:
        """Release the mailboxes."""
        self._sender.close()
        self._receiver.close()
        self._closed.set()
