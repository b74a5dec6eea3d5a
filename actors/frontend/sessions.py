"""Sessions: all open sessions of an engine, and the task that sends their turns."""

from collections import deque
from collections.abc import Collection
from typing import NoReturn

from msgspec.structs import replace

from ...ipc.errors import MessageTooLarge
from ...ipc.messages.config import EngineConfig
from ...ipc.messages.errors import ParameterError
from ...ipc.messages.requests import AddRequest
from ...ipc.messages.sampling import SamplingParams
from ...ipc.parking import Signal, wait_any
from ..errors import TooManySessions, copy_of
from .core_client import CoreClient
from .input_processor import InputProcessor
from .output_processor import OutputProcessor
from .session import Session
from .session_context import SessionContext
from .session_input import SessionOptions
from .session_link import SessionLink
from .session_turn import Turn
from .submission import Submitter

_LONGEST = 1e9  # seconds


class Sessions:
    """A SessionDesk. A restart of the core costs nothing here: the next turn of each just brings its whole context along."""

    def __init__(
        self,
        config: EngineConfig,
        client: CoreClient,
        inputs: InputProcessor,
        outputs: OutputProcessor,
        submitter: Submitter,
    ) -> None:
        self.limits = config.sessions
        self.client = client
        self.inputs = inputs
        self.outputs = outputs
        self.submitter = submitter
        self._open: dict[Session, None] = {}
        self._due: deque[tuple[SessionLink, Turn, AddRequest]] = deque()
        self._work = Signal()  # there is one

    def __len__(self) -> int:
        """Open sessions."""
        return len(self._open)

    def open(
        self,
        params: SamplingParams,
        session_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        idle_timeout: float | None = None,
    ) -> Session:
        """See AsyncLLM.open_session."""
        self.inputs.check_session(params)
        salt = self.inputs.check_sharing(priority, cache_salt)
        timeout = self.limits.session_idle_timeout if idle_timeout is None else idle_timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= _LONGEST:
            rule = f"idle_timeout must be a number of seconds above 0, at most {_LONGEST:g}"
            raise ParameterError(f"{rule}, got {timeout!r:.100}", "idle_timeout")
        external_id = self.inputs.check_request_id(session_id, "session_id")
        return self._add(SessionOptions(external_id, params, priority, salt, float(timeout)), SessionContext())

    def fork(self, parent: Session, context: SessionContext, seed: int | None, session_id: str | None) -> Session:
        """See SessionDesk."""
        params = replace(parent.options.params, seed=seed)  # which checks it
        options = SessionOptions(
            self.inputs.check_request_id(session_id, "session_id"),
            params,
            parent.options.priority,
            parent.options.cache_salt,
            parent.options.idle_timeout,
        )
        child = self._add(options, context)
        parent.link.fork(child.link)
        return child

    def _add(self, options: SessionOptions, context: SessionContext) -> Session:
        most = self.limits.max_sessions
        if len(self._open) >= most:
            raise TooManySessions(f"{most} sessions are open already, and this engine takes no more (max_sessions)")
        session = Session(self, SessionLink(self.client, self.client.next_number()), options, context)
        self._open[session] = None
        self.outputs.stats.num_sessions = len(self._open)
        return session

    def forget(self, session: Session) -> None:
        """See SessionDesk."""
        self._open.pop(session, None)
        self.outputs.stats.num_sessions = len(self._open)

    def send(self, link: SessionLink, turn: Turn, message: AddRequest) -> None:
        """See SessionDesk."""
        self._due.append((link, turn, message))
        self._work.set()

    async def run(self) -> NoReturn:
        """Send the turns that are due, for ever. One task of the frontend runs it."""
        while True:
            await wait_any([self._work])
            self._work.clear()
            while self._due:
                await self.client.wait_open()
                link, turn, message = self._due.popleft()
                if self.outputs.sending(turn.live, message):
                    turn.sent = True
                    try:
                        link.send(message)
                    except MessageTooLarge as error:
                        turn.put_error(error)

    def abort(self, external_ids: Collection[str]) -> None:
        """End the sessions that these ids of the caller stand for."""
        for session in [session for session in self._open if session.session_id in external_ids]:
            session.abort()

    def abort_all(self, error: Exception) -> None:
        """End every session; `error` is for whoever still appends."""
        for session in list(self._open):
            session.abort(copy_of(error))

    def fail_all(self, error: Exception) -> None:
        """End every session by an error."""
        for session in list(self._open):
            session.fail(copy_of(error))
