"""SessionLink: what the engine core knows of one session, and the messages about it."""

from msgspec.structs import replace

from ...ipc.messages.requests import AddRequest, CloseSession, Fork, Truncate
from .core_client import CoreClient


class SessionLink:
    """Nothing here waits. The core is only taken to have what it has shown to have: a turn whose Abort overtakes it never
    reaches the session, and a restarted core has no session but those whose turns it was sent again.
    """

    def __init__(self, client: CoreClient, number: int) -> None:
        """`number` is the session's own, unique in the engine."""
        self.number = number
        self._client = client
        self._life = 0  # of the core that is meant below
        self._length = 0  # so many tokens at the beginning of the session's context it has for sure
        self._may_be_known = False

    @property
    def length(self) -> int:
        """Tokens at the beginning of the context that the core has for sure; 0 when it may not know the session."""
        return self._length if self._life == self._client.life else 0

    def has(self, length: int) -> None:
        """The core has shown to have so many tokens of the context."""
        self._life, self._length = self._client.life, length

    def limit(self, length: int) -> None:
        """The context is not longer than this any more; the `base` of the next turn will say so."""
        self._length = min(self._length, length)

    def send(self, turn: AddRequest) -> None:
        """Send a turn, given with its whole prompt: only what the core has not. Right after the client's `wait_open`."""
        base = self.length
        self._may_be_known = True
        self._client.post(replace(turn, prompt=turn.prompt[base:], base=base) if base else turn)

    def truncate(self, length: int) -> None:
        """Have the core let go of what lies behind so many tokens."""
        self.limit(length)
        if self._may_be_known:
            self._client.post(Truncate(self.number, length))

    def fork(self, child: "SessionLink") -> None:
        """Have the core begin the session of `child` with what it has of this one."""
        if self.length:
            self._client.post(Fork(self.number, child.number, self.length))
            child.has(self.length)
            child._may_be_known = True

    def close(self) -> None:
        """Have the core forget the session. Harmless afterwards, as is everything else here."""
        if self._may_be_known:
            self._client.post(CloseSession(self.number))
        self._may_be_known, self._length = False, 0
