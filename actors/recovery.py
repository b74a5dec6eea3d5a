"""Recovery: what becomes of a core and its workers when one of them dies or hangs: a successor, or the engine's end."""

from collections.abc import Sequence
from contextlib import ExitStack

import msgspec
from msgspec.structs import replace

from ..ipc.board import BoardReader
from ..ipc.messages.config import RuntimeConfig
from ..ipc.messages.control import Reattach
from ..ipc.messages.failure import Failure
from ..ipc.messages.status import ActorStatus
from .boot import Boot
from .child import Child
from .errors import EngineStartError, failure_text
from .logs import logger
from .postmortem_capture import Snapshot, capture
from .restart_rule import RestartRule
from .topology import Topology

HELLO_TIMEOUT = 30.0  # seconds until a process has said Hello, which it does before it loads anything large
_CORE, _WORKER = "engine_core", "worker"
_WITH_OTHERS = "with others of its group"


class Death(msgspec.Struct, frozen=True):
    """A process that ended by itself, or was replaced because it hung."""

    actor: str
    reason: str  # in a word: killed, exited, failed, hung, late
    failure: Failure
    snapshot: Snapshot  # what there was to see of it


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened in a group, and how it goes on."""

    deaths: list[Death]  # the root causes: without those that were only killed with the others of their group
    epoch: int  # of the successors
    core_died: bool
    core_served: bool  # the core had become ready, so that requests were in its hands
    worked: bool  # the group did, until then
    alone: int | None  # the request that was in flight alone
    delay: float | None  # seconds until the successors start; None: there are none, the engine ends
    replaced: list[str]  # the actors, also those that were only killed with the others

    @property
    def failure(self) -> Failure:
        """Why: the first of the deaths."""
        return self.deaths[0].failure


class Group:
    """A core and its workers. The workers are replaced together, as they compute together; a core that has not begun its
    epoch yet is replaced with them.

    Attributes:
        epoch: counts the recoveries, from 1 on.
        start_at: when the successors start, in CLOCK_MONOTONIC; None while none is due.
        down: why and since when the group does not work; None while it does.
    """

    def __init__(self, members: Sequence[Child], topology: Topology, runtime: RuntimeConfig) -> None:
        """`members` are the core, then its workers."""
        self.members = members
        self.epoch = 1
        self.start_at: float | None = None
        self.down: tuple[Failure, float] | None = None
        self._core, *self._workers = members
        self._topology = topology
        self._startup_timeout = runtime.startup_timeout
        self._num_blocks: int | None = None  # of KV cache; it keeps its size, whatever memory is free at a restart
        self._rules = {kind: RestartRule(runtime.max_restarts) for kind in (_CORE, _WORKER)}
        with ExitStack() as opened:
            self._boards = {child.actor: BoardReader(child.boot.status, ActorStatus) for child in members}
            for board in self._boards.values():
                opened.callback(board.close)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Release the boards."""
        self._opened.close()

    def look(self, now: float) -> list[Child]:
        """Take what the members said, and have everybody end who has to; returns who has ended, once all of those have."""
        for child in self.members:
            child.take_messages()
            if child.failure is not None:
                child.condemn("failed")
        self._condemn_late(now)
        if any(map(_is_lost, self._workers)):
            for child in self._workers if self._core.ready else self.members:
                if child.running:
                    child.condemn(_WITH_OTHERS)
        lost = [child for child in self.members if _is_lost(child)]
        return [] if any(child.running for child in lost) else lost

    def deadline(self) -> float | None:
        """When to look next, though nobody has said anything, in CLOCK_MONOTONIC; None: never."""
        times = [self._deadline_of(child) for child in self._starting()]
        return min([*times, *([] if self.start_at is None else [self.start_at])], default=None)

    def _starting(self) -> list[Child]:
        """Members that are to become ready."""
        return [child for child in self.members if child.running and child.ready is None and not child.reason]

    def _deadline_of(self, child: Child) -> float:
        """Until when a process that starts must have got further."""
        return child.began + (self._startup_timeout if child.greeted else min(HELLO_TIMEOUT, self._startup_timeout))

    def _condemn_late(self, now: float) -> None:
        late = [child for child in self._starting() if now >= self._deadline_of(child)]
        for child in late[-1:]:  # who waits for others comes before them, so the last one is to blame
            in_all = child.greeted or self._startup_timeout < HELLO_TIMEOUT
            limit = f"startup_timeout={self._startup_timeout:g} s" if in_all else f"{HELLO_TIMEOUT:g} s"
            child.condemn("late", child.describe_lateness(limit))
            if child is self._core:  # its workers were ready long ago, and do not answer it
                for worker in self._workers:
                    worker.condemn("late", worker.describe("TimeoutError", f"does not answer its core for {limit}"))

    def replace_hung(self, actor: str, what: str) -> None:
        """Kill a member that hangs in something, so that it gets a successor.

        One that starts has limits of its own. Nor is a core killed that may wait for room in the mailbox of workers that start.
        """
        for child in self.members:
            waits = child is self._core and not all(worker.ready for worker in self._workers)
            if child.actor == actor and child.running and child.ready is not None and not waits:
                child.condemn("hung", child.describe("Hung", what))

    def recover(self, lost: Sequence[Child], now: float) -> Recovery:
        """Settle what becomes of the group when these have ended, and make ready for their successors.

        The caller tells the frontends, and calls `start` when `start_at` has come.
        """
        for child in lost:
            child.body.reap(timeout=1)
            child.take_messages()  # it may have spoken just before its end
        roots = [child for child in lost if child.reason != _WITH_OTHERS] or lost
        alone = self._alone()
        delays = [self._judge(kind, [child for child in roots if child.boot.kind == kind], alone) for kind in self._rules]
        known = [delay for delay in delays if delay is not None]
        delay = max(known) if len(known) == len(delays) else None
        deaths = [self._death_of(child) for child in roots]
        recovery = Recovery(
            deaths=deaths,
            epoch=self.epoch + 1,
            core_died=self._core in lost or not self._core.started,
            core_served=self._core.ready is not None,
            worked=self.down is None,
            alone=alone,
            delay=delay,
            replaced=[child.actor for child in lost],
        )
        if delay is not None:
            self.down = self.down or (recovery.failure, now)
            self.start_at = max(self.start_at or 0.0, now + delay)
        return recovery

    def _alone(self) -> int | None:
        """The request that the core has, or had when it died, in flight alone."""
        status = self._boards[self._core.actor].read()
        return status.alone if status is not None and status.epoch == self._core.boot.epoch else None

    def _judge(self, kind: str, died: Sequence[Child], alone: int | None) -> float | None:
        """Seconds until a successor of these, of one kind, may start: 0 where none has died, None for never."""
        if not died:
            return 0.0
        lives = [(child.boot.epoch, self._boards[child.actor].read()) for child in died]
        steps = max(status.steps if status is not None and status.epoch == epoch else 0 for epoch, status in lives)
        return self._rules[kind].died(steps=steps, blamed=alone is not None)

    def _death_of(self, child: Child) -> Death:
        failure, deaths = child.describe_death(), self._rules[child.boot.kind].deaths
        if deaths > 1:
            failure = replace(failure, message=f"{failure.message} ({deaths} deaths in a row without a finished step)")
        code = child.body.exitcode
        reason = child.reason or ("killed" if code is not None and code < 0 else "exited")
        return Death(child.actor, reason, failure, capture(child.boot, failure, child.body.tail))

    def renew(self, lost: Sequence[Child], reason: Failure) -> None:
        """Begin the next epoch: vacate the places of those that have ended, and tell those that go on."""
        self.epoch += 1
        if self._core.ready is not None:
            self._num_blocks = self._core.ready.num_blocks
        for child in lost:
            self._topology.vacate(child.boot)
        for child in self.members:
            if child in lost or not child.started:
                child.succeed(self._successor(child.boot))
        peer = self._workers[0] if self._core.started else self._core
        for child in self.members:
            if child.running and not child.tell(Reattach(peer.actor, self.epoch, failure_text(reason))):
                child.condemn("failed", child.describe("MailboxFull", "it does not take what its supervisor tells it"))

    def _successor(self, boot: Boot) -> Boot:
        cache = replace(boot.config.cache, num_blocks_override=self._num_blocks)
        return replace(boot, epoch=self.epoch, config=replace(boot.config, cache=cache))

    def start(self, now: float) -> None:
        """Start the successors; later if the system refuses. Raises EngineStartError when it has done so too often."""
        self.start_at = None
        for child in self.members:
            if child.started:
                continue
            child.began = now
            try:
                child.start()
            except EngineStartError as error:
                delay = self._rules[child.boot.kind].died(steps=0, blamed=False)
                if delay is None:
                    raise
                logger.warning("%s; it is tried again in %g s", error, delay)
                self.start_at = now + delay
                return

    def settle(self, now: float) -> float:
        """Seconds that the group was down, once the core has begun the epoch with its workers; 0 before, and ever after."""
        if self.down is None or self._core.ready is None or self._core.ready.epoch < self.epoch:
            return 0.0
        _, since = self.down
        self.down = None
        return now - since


def _is_lost(child: Child) -> bool:
    """Whether it has ended or is about to."""
    return child.started and (not child.running or bool(child.reason))
