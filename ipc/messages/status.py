"""What an actor posts on its status board, for whoever looks: nobody has to answer."""

from typing import Literal

from .base import Record
from .load import LoadStats

State = Literal["starting", "ready", "draining", "stopping", "failed"]
STATUS_BYTES = 1024  # of an encoded status, at most


class ActorStatus(Record, frozen=True):
    """An actor at one moment. Times are seconds of CLOCK_MONOTONIC, which all processes of a machine share."""

    actor: str  # unique in the engine: frontend0, core0, worker0.1
    kind: str
    pid: int
    supervisor: int  # pid
    epoch: int
    state: State
    steps: int = 0  # pieces of work finished: engine steps, or messages of a frontend
    progress: float = 0.0  # when the last one was finished
    message: str = ""  # in hand, by type, with the number of its step; empty when idle
    since: float = 0.0  # when it was taken
    asks: str = ""  # the actor whose answer it waits for
    load: LoadStats | None = None  # of a core
    alone: int | None = None  # the request that is in flight alone, because it was in flight at several deaths
