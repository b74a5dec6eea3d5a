"""CoreClient: the frontend's ends of the mailboxes to and from one engine core."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn

from ...ipc.attach import MailboxHandle, attach_receiver
from ...ipc.blocking import blocking_loop
from ...ipc.errors import Broken, Closed, WouldBlock
from ...ipc.lanes import Lanes, LaneSender
from ...ipc.mailbox import Receiver, Sender
from ...ipc.messages.outputs import OutputMessage, UtilityReply
from ...ipc.messages.requests import FRONTEND_SHIFT, Abort, AddRequest, RequestMessage, Resume
from ...ipc.parking import Gate, Parkable, Signal, wait_any
from ..asking import Asks, Wait, Watch, unwatched
from ..debug import watched
from ..errors import SHUT_DOWN, EngineDeadError, copy_of

Unfinished = Callable[[], Iterator[RequestMessage]]


class CoreClient:
    """Numbers requests and calls, and sends in order. Used from one loop: an event loop, where `run` is a task, or a
    BlockingLoop, whose owner calls `catch_up` whenever it waits. Nothing but mailboxes is awaited here.

    While the core is restarted, what is to be sent waits here; its successor gets a Resume, then the unfinished requests, the
    calls that wait for their answer, and then what has waited.
    """

    def __init__(
        self,
        requests: Lanes,
        outputs: MailboxHandle,
        unfinished: Unfinished = lambda: iter(()),
        frontend: int = 0,
        *,
        core: str = "core0",
        watch: Watch = unwatched,
        wait: Wait = wait_any,
        debug: bool = False,
    ) -> None:
        """Attach to both mailboxes. `unfinished` gives the requests that a restarted core has to be sent.

        `core` is the actor's name, `watch` learns of calls, `wait` is how these wait, `debug` warns of a full mailbox.
        """
        self._lanes: LaneSender[RequestMessage] = LaneSender(requests, RequestMessage, checked=debug)
        self._sender: Sender[RequestMessage] = watched(self._lanes.ordered, on=debug)
        self._receiver: Receiver[OutputMessage] = attach_receiver(outputs, OutputMessage)
        self._last = frontend << FRONTEND_SHIFT
        self._unfinished = unfinished
        self._posts: deque[RequestMessage] = deque()  # found no room; `run` sends them in order
        self._work = Signal()  # there is something to do for `catch_up`
        self._open = Gate(is_open=True)  # shut while the core is restarted
        self._epoch = 0  # of the successor that is to be sent what it needs; 0: none
        self._resumed = 0  # the epoch of the last Resume that was sent
        self._sent_again: set[int] = set()  # requests that were sent after that Resume, while the gate is shut
        self._calls: dict[int, RequestMessage] = {}  # that were sent and wait for their answer
        self._asks: Asks[UtilityReply] = Asks(core, watch, wait)
        self._error: Exception = EngineDeadError(SHUT_DOWN)  # of whoever sends after `close`
        self._closed = Gate()
        self.life = 1  # of the core: what it was told in an earlier one it does not know

    def next_number(self) -> int:
        """A fresh number for a request or a call, unique in the engine."""
        self._last += 1
        return self._last

    async def wait_open(self) -> None:
        """Return when the core is there. What is sent without waiting once more goes to it, or to its successor in the end.

        Under a BlockingLoop, where no task does it, what `catch_up` does comes first. Raises as `tell`.
        """
        if blocking_loop() is not None:
            try:
                await self.catch_up()
            except (Closed, Broken):
                await self._raise_reason()
        await self._open.wait()

    async def _raise_reason(self) -> NoReturn:
        await self._closed.wait()
        raise copy_of(self._error) from None

    async def tell(self, message: RequestMessage) -> None:
        """Send, waiting for the core and for room: a core that is busy holds its frontends back. After `wait_open`.

        When the core is gone for good, raises the error of `fail`, once that is known.
        """
        await self._open.wait()
        try:
            await self._sender.send(message)
        except (Closed, Broken):
            await self._raise_reason()

    def abort(self, request: int) -> None:
        """Have the core drop a request. Never waits: without room it is sent by `catch_up`.

        A copy goes ahead in the urgent lane, where there is room, so that it takes effect before what waits in the other.
        """
        with suppress(Closed, Broken):
            self._lanes.send_urgent(Abort(request))
        self.post(Abort(request))

    def post(self, message: RequestMessage) -> None:
        """Send behind all that was posted before. Never waits: without room it is sent by `catch_up`.

        When there is no core, or a successor of it to come, nothing happens: whoever posts has it sent again if that is needed.
        """
        try:
            if self._posts:
                raise WouldBlock("earlier ones wait")
            self._sender.send_nowait(message)
        except (Closed, Broken):
            pass
        except WouldBlock:
            self._posts.append(message)
            self._work.set()

    def core_died(self, epoch: int) -> None:
        """The core is restarted with this epoch, and all that the dead one sent has been received: hold back what is sent."""
        self._epoch = epoch
        self.life += 1
        self._posts.clear()  # they were for the dead one
        self._open.shut()
        self._work.set()

    async def run(self) -> None:
        """Do at once what `catch_up` does, for ever. One task of the frontend runs it."""
        while True:
            await wait_any([self._work])
            await self.catch_up()

    async def catch_up(self) -> None:
        """Send what a restarted core needs, and the posts that found no room; nothing is there to send most of the time.

        Broken off by an exception, it goes on where it was at the next call.
        """
        while self._work.ready():
            if self._epoch:
                await self._resume(self._epoch)
            elif self._posts:
                message = self._posts[0]
                await self._sender.send(message)
                if self._posts and self._posts[0] is message:  # else the core has died meanwhile
                    self._posts.popleft()
            else:
                self._work.clear()

    async def _resume(self, epoch: int) -> None:
        """Introduce this frontend to the core's successor. Ends early when that dies too."""
        if self._resumed != epoch:
            # Behind what was being sent when the core died: all that is passed over.
            await self._sender.send(Resume(epoch))
            self._resumed = epoch
            self._sent_again.clear()
        for request in self._unfinished():
            if self._epoch != epoch:
                return
            if not isinstance(request, AddRequest):
                await self._sender.send(request)
            elif request.request not in self._sent_again:
                await self._sender.send(request)
                self._sent_again.add(request.request)
        for call in list(self._calls.values()):
            if self._epoch == epoch:
                await self._sender.send(call)
        if self._epoch == epoch:
            self._epoch = 0
            self._sent_again.clear()
            self._open.open()

    async def receive(self) -> OutputMessage:
        """The next message of the core."""
        return await self._receiver.receive()

    async def wait_news(self, other: Parkable) -> None:
        """Return when `receive_nowait` or `catch_up` may have something to do, or `other` is ready."""
        await wait_any([self._receiver, self._work, other])

    def receive_nowait(self) -> OutputMessage:
        """The next message if it is there; else WouldBlock."""
        return self._receiver.receive_nowait()

    async def ask(self, call: Callable[[int], RequestMessage], deadline_seconds: float) -> UtilityReply:
        """Send the utility call that `call` makes for a fresh number, and wait for its answer.

        Raises NoAnswerError after `deadline_seconds`, EngineGenerateError when the core refuses it, the error of `fail`.
        """
        number = self.next_number()

        async def send(message: RequestMessage) -> None:
            await self.wait_open()
            self._calls[number] = message
            await self.tell(message)

        try:
            return await self._asks.ask(send, call(number), number, deadline_seconds)
        finally:
            self._calls.pop(number, None)

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
        self._closed.open()
        self._open.open()
