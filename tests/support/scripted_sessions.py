"""Sessions of a ScriptedEngine: the frontend's own, and a script for the core that answers their turns."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import cast

from ringpost.actors.frontend.core_client import CoreClient
from ringpost.actors.frontend.input_processor import InputProcessor
from ringpost.actors.frontend.output_processor import OutputProcessor
from ringpost.actors.frontend.session import Session
from ringpost.actors.frontend.session_link import SessionLink
from ringpost.actors.frontend.session_turn import Turn
from ringpost.actors.frontend.sessions import Sessions
from ringpost.actors.frontend.submission import Submitter
from ringpost.ipc.messages.config import EngineConfig
from ringpost.ipc.messages.requests import AddRequest, RequestMessage


class ScriptedCore:
    """As much of a CoreClient as sessions use: it keeps what it is sent."""

    life = 1

    def __init__(self) -> None:
        self.posted: list[RequestMessage] = []
        self.aborted: list[int] = []
        self._numbers = count(1_000_000)

    def next_number(self) -> int:
        return next(self._numbers)

    def post(self, message: RequestMessage) -> None:
        self.posted.append(message)

    def abort(self, request: int) -> None:
        self.aborted.append(request)


class ScriptedSessions(Sessions):
    """Turns reach the core at once, and `on_turn` learns of each with the message that came, `on_end` of ended sessions."""

    def __init__(
        self,
        config: EngineConfig,
        inputs: InputProcessor,
        outputs: OutputProcessor,
        submitter: Submitter,
        on_turn: Callable[[Turn, AddRequest], None],
        on_end: Callable[[], None],
    ) -> None:
        self.core = ScriptedCore()
        super().__init__(config, cast("CoreClient", self.core), inputs, outputs, submitter)
        self._on_turn = on_turn
        self._on_end = on_end

    def forget(self, session: Session) -> None:
        super().forget(session)
        self._on_end()

    def send(self, link: SessionLink, turn: Turn, message: AddRequest) -> None:
        assert self.outputs.sending(turn.live, message)
        turn.sent = True
        link.send(message)
        sent = self.core.posted[-1]
        assert isinstance(sent, AddRequest)
        # An answer comes later than the call that asks for it, as from a core.
        asyncio.get_running_loop().call_soon(self._on_turn, turn, sent)
