"""Mailboxes control, supervisor <-> every actor: one writer and one reader each way."""

from .base import Message
from .failure import Failure


class Reattach(Message, frozen=True):
    """A peer has died and is restarted with this epoch; its mailboxes are the same."""

    peer: str
    epoch: int
    reason: str = ""  # why it died, safe to show to a client


class Drain(Message, frozen=True):
    """Finish what runs for at most `seconds`, accept nothing new."""

    seconds: float


class Stop(Message, frozen=True):
    """Leave now, in good order."""


class Hello(Message, frozen=True):
    """An actor's process is up and has attached its mailboxes."""

    actor: str
    pid: int
    epoch: int


class ActorReady(Message, frozen=True):
    """An actor can take work. The values are what it learned while it started."""

    actor: str
    num_blocks: int = 0
    seconds: dict[str, float] = {}  # where the time went, by phase
    epoch: int = 1  # that a core has begun with its workers; it says so once more when that is a later one


ToActor = Reattach | Drain | Stop
FromActor = Hello | ActorReady | Failure
