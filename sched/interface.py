"""What the engine core asks of a scheduler, so that it can be replaced (`scheduler_cls`)."""

from typing import Protocol

from ..ipc.messages.config import CacheConfig, SchedulerConfig
from ..ipc.messages.import_path import class_at
from ..ipc.messages.outputs import TokenDelta
from ..ipc.messages.plans import StepPlan
from ..ipc.messages.requests import AddRequest
from ..ipc.messages.results import StepResult
from .outputs import Stats, StepUpdate


class SchedulerInterface(Protocol):
    """See `scheduler.Scheduler`, whose docstrings are the contract. It is used from one thread, and never waits."""

    def __init__(
        self,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        *,
        num_blocks: int,
        max_model_len: int,
        steps_in_flight: int = 1,
    ) -> None:
        """See `Scheduler`."""

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished or a step's result is still to come."""

    @property
    def alone(self) -> int | None:
        """The request that is in flight alone, or planned next, because it is suspected of what processes die of; else None."""

    def stats(self) -> Stats:
        """Numbers of this moment."""

    def add(self, request: AddRequest) -> TokenDelta | None:
        """Let a request wait; a delta if the output it brings already ends it. ValueError for one that can never run."""

    def abort(self, request: int) -> bool:
        """Forget a request; False if it is unknown."""

    def abort_all(self) -> list[TokenDelta]:
        """End all requests; returns their last deltas."""

    def park(self, request: int) -> bool:
        """Schedule a request no more until `unpark`; False if it is unknown."""

    def unpark(self, request: int) -> bool:
        """Let a parked request go on; False if it is not parked."""

    def fork_session(self, session: int, child: int, length: int) -> None:
        """Open a session with the beginning of another one's context. SessionMismatch if that is not there."""

    def truncate_session(self, session: int, length: int) -> None:
        """Let go of a session's context behind so many tokens, unless it has a turn."""

    def close_session(self, session: int) -> int | None:
        """Forget a session; the number of the turn that ended with it."""

    def open_sessions(self) -> list[int]:
        """The numbers of all sessions."""

    def schedule(self) -> StepPlan | None:
        """The next step, or None if there is nothing to compute or enough in flight."""

    def update(self, result: StepResult) -> StepUpdate:
        """Apply the oldest step's result."""

    def restart(self) -> list[int]:
        """The workers were replaced: begin anew with the requests at hand. Returns those ended because workers die of them."""

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> None:
        """Let no request find what was computed so far."""


def scheduler_class(path: str) -> type[SchedulerInterface]:
    """The class at an import path, "package.module.Class". Raises ValueError, naming the path, if there is none."""
    return class_at(path, option="scheduler_cls", noun="scheduler", contract=SchedulerInterface)
