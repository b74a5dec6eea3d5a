"""How a failure crosses processes: who failed, on what, and why."""

from .base import Message


class Failure(Message, frozen=True):
    """An actor, or one request in its care, failed.

    `request` is None when the actor itself failed. `message` is safe to show to a client; `traceback` is for logs only.
    """

    actor: str
    pid: int
    kind: str  # name of the exception class
    message: str
    traceback: str = ""
    request: int | None = None
