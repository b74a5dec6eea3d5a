"""SessionCore: the frontend's sessions before an engine core that keeps the contract of its messages and says what a test says.

The request port is the core's own. What the core has sent reaches the frontend when it is delivered.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mailboxes import make_lanes, make_ring

from ringpost import RequestOutput, RequestOutputKind, SamplingParams, Session
from ringpost.actors.config import engine_config, resolve_config
from ringpost.actors.engine_core.request_port import RequestPort
from ringpost.actors.frontend.core_client import CoreClient
from ringpost.actors.frontend.input_processor import InputProcessor
from ringpost.actors.frontend.output_processor import OutputProcessor
from ringpost.actors.frontend.renderer import Renderer
from ringpost.actors.frontend.sessions import Sessions
from ringpost.actors.frontend.submission import Submitter
from ringpost.ipc.lanes import LaneReceiver
from ringpost.ipc.messages.config import EngineConfig
from ringpost.ipc.messages.outputs import FinishReason, TokenDelta, TokenLogprobs
from ringpost.ipc.messages.requests import Abort, AddRequest, CloseSession, Fork, RequestMessage, Truncate

EOS = 2


@dataclass
class CoreTurn:
    """A turn that runs in the core."""

    add: AddRequest
    context: list[int]  # the session's whole, with the turn's prompt
    output: list[int] = field(default_factory=list)


class SessionCore:
    """Both sides. `core_contexts` are those of idle sessions in the core, `turns` what runs there, by session."""

    def __init__(
        self,
        model: str,
        num_blocks: int = 64,
        mailbox_bytes: int = 1 << 16,
        config: EngineConfig | None = None,
        **options: Any,
    ) -> None:
        """`config` is a resolved one, where there is one already."""
        self.config = config or resolve_config(engine_config(model=model, **options))
        self.outputs = OutputProcessor()
        self._handles = make_lanes(RequestMessage, mailbox_bytes)
        self.client = CoreClient(self._handles.duplicate(), make_ring(), self.outputs.unfinished)
        renderer = Renderer(self.config.checkpoint)
        inputs = InputProcessor(self.config, renderer, num_blocks)
        submitter = Submitter(self.config, renderer, inputs, self.outputs, self.client.next_number, self.client.abort)
        self.sessions = Sessions(self.config, self.client, inputs, self.outputs, submitter)
        self._epoch = 1
        self._receiver: LaneReceiver[RequestMessage] = LaneReceiver(self._handles.duplicate(), RequestMessage)
        self._port = RequestPort(self._receiver)
        self.received: list[RequestMessage] = []
        self.core_contexts: dict[int, list[int]] = {}
        self.turns: dict[int, CoreTurn] = {}
        self.sent: deque[TokenDelta] = deque()  # on its way to the frontend

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SessionCore"]:
        """Run the frontend's tasks."""
        running = [asyncio.create_task(self.client.run()), asyncio.create_task(self.sessions.run())]
        try:
            yield self
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            self.close()
        assert all(task.cancelled() for task in running), "one of them has failed"

    def close(self) -> None:
        """Release the mailboxes."""
        self.client.close()
        self._receiver.close()
        self._handles.close()

    def open(self, params: SamplingParams | None = None, session_id: str | None = "s", **options: Any) -> Session:
        """A session; of plain deltas unless the parameters say otherwise."""
        return self.sessions.open(params or deltas(), session_id, **options)

    async def settle(self) -> None:
        """Have everything that is under way arrive at the core."""
        for _ in range(8):
            await asyncio.sleep(0)
            self.take()

    def take(self) -> None:
        """Have the core take what waits."""
        for message in self._port.messages():
            self.received.append(message)
            self._apply(message)

    def _apply(self, message: RequestMessage) -> None:
        match message:
            case AddRequest():
                assert message.session not in self.turns, "a turn is sent while another one runs"
                context = self.core_contexts.pop(message.session) if message.base else []
                assert message.base <= len(context), "the core has not as much"
                self.turns[message.session] = CoreTurn(message, context[: message.base] + message.prompt, list(message.output))
            case Abort():
                for session, turn in list(self.turns.items()):
                    if turn.add.request == message.request:
                        self._end(session)
            case Truncate():
                if message.session in self.core_contexts:
                    del self.core_contexts[message.session][message.length :]
            case Fork():
                context = self.whole(message.session)
                assert message.length <= len(context), "the core has not as much"
                self.core_contexts[message.child] = context[: message.length]
            case CloseSession():
                self.turns.pop(message.session, None)
                self.core_contexts.pop(message.session, None)

    def whole(self, session: int) -> list[int]:
        """All tokens that the core has of a session."""
        turn = self.turns.get(session)
        return self.core_contexts[session] if turn is None else turn.context + turn.output

    def _end(self, session: int) -> None:
        turn = self.turns.pop(session)
        self.core_contexts[session] = turn.context + turn.output

    def generate(self, session: Session, tokens: Sequence[int] | str, reason: FinishReason | None = None) -> None:
        """The core makes tokens, or those of a text, and sends them; with reason "stop" an end of sequence follows them."""
        turn = self.turns[session.link.number]
        new = token_ids(tokens) if isinstance(tokens, str) else list(tokens)
        new += [EOS] if reason == "stop" else []
        logprobs = [] if turn.add.params.logprobs is None else [_logprobs(token) for token in new]
        self.sent.append(TokenDelta(turn.add.request, len(turn.output), new, reason, None, logprobs=logprobs))
        turn.output += new
        if reason is not None:
            self._end(session.link.number)

    def deliver(self, count: int | None = None) -> None:
        """Let the frontend have the oldest deltas."""
        while self.sent and count != 0:
            for number in self.outputs.process([self.sent.popleft()]):
                self.client.abort(number)
            count = None if count is None else count - 1

    async def say(self, session: Session, tokens: Sequence[int] | str, reason: FinishReason | None = None) -> None:
        """What waits arrives, then `generate` and `deliver`."""
        await self.settle()
        self.generate(session, tokens, reason)
        self.deliver()
        await self.settle()

    def die(self) -> None:
        """The core dies, and its successor knows nothing; what it had sent is delivered before."""
        self.deliver()
        self._epoch += 1
        self.turns.clear()
        self.core_contexts.clear()
        self._port = RequestPort(self._receiver, self._epoch)
        self.client.core_died(self._epoch)


def token_ids(text: str) -> list[int]:
    """One a byte."""
    return [3 + byte for byte in text.encode()]


def deltas(**params: Any) -> SamplingParams:
    """Parameters for answers whose outputs hold what is new."""
    usual: dict[str, Any] = {"output_kind": RequestOutputKind.DELTA, "seed": 1, "max_tokens": 100}
    return SamplingParams(**(usual | params))


def taken(session: Session) -> list[RequestOutput]:
    """The outputs that wait for the consumer."""
    found = list[RequestOutput]()
    while not (found and found[-1].finished) and (output := session.collector.get_nowait()) is not None:
        found.append(output)
    return found


def shown(output: RequestOutput) -> tuple[str, Any, Any, bool]:
    """Text, finish reason, context length at the boundary, and whether it is the last."""
    (one,) = output.outputs
    return one.text, one.finish_reason, output.boundary and output.boundary.context_length, output.finished


def _logprobs(token: int) -> TokenLogprobs:
    return TokenLogprobs(-0.5, 1, array("i", [token]).tobytes(), array("f", [-0.5]).tobytes())
