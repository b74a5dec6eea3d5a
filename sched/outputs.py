"""What the scheduler tells its caller: the news of a step, and its numbers."""

from dataclasses import dataclass

from ..ipc.messages.outputs import TokenDelta
from ..ipc.messages.results import RowFailure


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A request that failed alone. Its delta says finish_reason "error"; this says why."""

    request: int
    failure: RowFailure


@dataclass(frozen=True, slots=True)
class StepUpdate:
    """The news of one step: a delta for each request that failed, then for each that got a token."""

    deltas: list[TokenDelta]
    failures: list[RequestFailure]


@dataclass(frozen=True, slots=True)
class Stats:
    """Numbers of a scheduler at one moment."""

    running: int
    waiting: int  # for a row or, the parked ones, for their frontend
    num_blocks: int
    free_blocks: int  # held by nobody, not even by an idle session; they may hold what the prefix cache finds
    steps: int  # whose results have been applied
    parked: int
    preemptions: int  # since the scheduler was made, as the following
    prefix_queries: int  # prompt tokens looked up in the prefix cache
    prefix_hits: int  # those of them that were found
    sessions: int = 0  # open
    sessions_evicted: int = 0  # those of them that have tokens and, between two turns, no blocks
