"""StatusBlock: what an actor is doing, posted on its board each time that changes. Whoever looks there costs it nothing."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from ..ipc.board import BoardHandle, BoardWriter
from ..ipc.messages.load import LoadStats
from ..ipc.messages.status import ActorStatus, State

_NEXT: dict[State, tuple[State, ...]] = {
    "starting": ("ready", "stopping", "failed"),
    "ready": ("draining", "stopping", "failed"),
    "draining": ("stopping", "failed"),
    "stopping": ("failed",),
    "failed": (),
}


class StatusBlock:
    """The writing side: the status as it is now. Every change is posted at once, at the cost of microseconds."""

    def __init__(self, post: Callable[[ActorStatus], None], *, actor: str, kind: str, supervisor: int, epoch: int) -> None:
        """Posts the state "starting". `supervisor` is a pid."""
        self._post = post
        self._set(ActorStatus(actor, kind, os.getpid(), supervisor, epoch, "starting"))

    def _set(self, status: ActorStatus) -> None:
        self.now = status
        self._post(status)

    def state(self, new: State) -> None:
        """Enter the next state of its life."""
        assert new in _NEXT[self.now.state], f"{self.now.actor}: {self.now.state} -> {new}"
        self._set(replace(self.now, state=new))

    def taking(self, message: str) -> None:
        """A message is in hand from now on, by the name of `message_name`."""
        self._set(replace(self.now, message=message, since=time.monotonic()))

    def asking(self, peer: str) -> None:
        """The actor waits for the answer of this one; empty: of nobody any more."""
        self._set(replace(self.now, asks=peer))

    def alone(self, request: int | None) -> None:
        """This request is in flight alone, because others must not die with it; None: no such one any more."""
        if request != self.now.alone:
            self._set(replace(self.now, alone=request))

    def done(self, steps: int = 1, load: LoadStats | None = None) -> None:
        """What was in hand is finished, and with it so many pieces of work. Without `load` the last one stays."""
        status = self.now
        self._set(
            replace(
                status,
                steps=status.steps + steps,
                progress=time.monotonic(),
                message="",
                since=0.0,
                load=status.load if load is None else load,
            )
        )


def message_name(message: object) -> str:
    """The name by which a message is shown: its type, with the number of its step where it has one."""
    step = getattr(message, "step", None)
    name = type(message).__name__
    return name if step is None else f"{name} {step}"


@contextmanager
def own_status(handle: BoardHandle, actor: str, kind: str) -> Iterator[StatusBlock]:
    """The status of an actor that is no child process but supervises itself: "stopping" or "failed" where the block ends."""
    writer = BoardWriter(handle, ActorStatus)
    try:
        status = StatusBlock(writer.post, actor=actor, kind=kind, supervisor=os.getpid(), epoch=1)
        try:
            yield status
        except Exception:
            status.state("failed")
            raise
        except BaseException:  # cancelled: that is how it stops
            status.state("stopping")
            raise
        status.state("stopping")
    finally:
        writer.close()
