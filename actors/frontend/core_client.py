"""CoreClient: the frontend's ends of the mailboxes to and from one engine core."""

import asyncio
from collections import deque
from collections.abc import Callable

from ...ipc.attach import MailboxHandle, attach_receiver
from ...ipc.errors import Broken, Closed, WouldBlock
from ...ipc.lanes import Lanes, LaneSender
from ...ipc.mailbox import Receiver, Sender
from ...ipc.messages.outputs import OutputMessage, UtilityReply
from ...ipc.messages.requests import FRONTEND_SHIFT, Abort, RequestMessage
from ...ipc.parking import Signal, wait_any
from ..asking import Asks, Watch, unwatched
from ..debug import watched
from ..errors import EngineDeadError, copy_of


class CoreClient:
    """Numbers requests and calls, and sends in order. Used from one event loop."""

    def __init__(
        self,
        requests: Lanes,
        outputs: MailboxHandle,
        frontend: int = 0,
        *,
        core: str = "core0",
        watch: Watch = unwatched,
        debug: bool = False,
    ) -> None:
        """Attach to both mailboxes. `core` is the actor's name, `watch` learns of calls, `debug` warns of a full mailbox."""
        self._lanes: LaneSender[RequestMessage] = LaneSender(requests, RequestMessage, checked=debug)
        self._sender: Sender[RequestMessage] = watched(self._lanes.ordered, on=debug)
        self._receiver: Receiver[OutputMessage] = attach_receiver(outputs, OutputMessage)
        self._last = frontend << FRONTEND_SHIFT
        self._aborts: deque[Abort] = deque()  # found no room; `flush_aborts` sends them in order
        self._aborts_wait = Signal()
        self._asks: Asks[UtilityReply] = Asks(core, watch)
        self._error: Exception = EngineDeadError("the engine was shut down")  # of whoever sends after `close`
        self._closed = asyncio.Event()

    def next_number(self) -> int:
        """A fresh number for a request or a call, unique in the engine."""
        self._last += 1
        return self._last

    async def tell(self, message: RequestMessage) -> None:
        """Send, waiting for room: a core that is busy holds its frontends back.

        When the core is gone, raises the error of `fail`, once that is known.
        """
        try:
            await self._sender.send(message)
        except (Closed, Broken):
            await self._closed.wait()
            raise copy_of(self._error) from None

    def abort(self, request: int) -> None:
        """Have the core drop a request. Never waits: without room it is sent by `flush_aborts`.

        A copy goes ahead in the urgent lane, where there is room, so that it takes effect before what waits in the other.
        """
        try:
            self._lanes.send_urgent(Abort(request))
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

    async def ask(self, call: Callable[[int], RequestMessage], deadline_seconds: float) -> UtilityReply:
        """Send the utility call that `call` makes for a fresh number, and wait for its answer.

        Raises NoAnswerError after `deadline_seconds`, EngineGenerateError when the core refuses it, the error of `fail`.
        """
        number = self.next_number()
        return await self._asks.ask(self.tell, call(number), number, deadline_seconds)

    def answer(self, reply: UtilityReply) -> None:
        """Hand a reply to the call that waits for it, if it still does."""
        self._asks.answer(reply.call, reply)

    def fail(self, error: Exception) -> None:
        """The core is gone: end every call that waits by this error, which is also that of whoever tells after `close`."""
        self._error = error
        self._asks.fail(error)

    def close(self) -> None:
        """Release the mailboxes."""
        self._lanes.close()
        self._receiver.close()
        self._closed.set()
