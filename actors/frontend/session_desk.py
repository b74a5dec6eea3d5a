"""SessionDesk: what the sessions of an engine share."""

from typing import Protocol, TypeVar

from ...ipc.messages.config import SessionConfig
from ...ipc.messages.requests import AddRequest
from .core_client import CoreClient
from .input_processor import InputProcessor
from .output_processor import OutputProcessor
from .session_context import SessionContext
from .session_link import SessionLink
from .session_turn import Turn
from .submission import Submitter

S = TypeVar("S")


class SessionDesk(Protocol[S]):
    """The parts of the frontend that a session (S) uses, and the table of open ones."""

    limits: SessionConfig
    client: CoreClient
    inputs: InputProcessor
    outputs: OutputProcessor
    submitter: Submitter

    def send(self, link: SessionLink, turn: Turn, message: AddRequest) -> None:
        """Have a turn sent as soon as the core is there. `message` has the whole context and chunk for its prompt."""

    def fork(self, parent: S, context: SessionContext, seed: int | None, session_id: str | None) -> S:
        """A new session with this context. Raises as `AsyncLLM.open_session`."""

    def forget(self, session: S) -> None:
        """It has ended. Harmless afterwards."""
