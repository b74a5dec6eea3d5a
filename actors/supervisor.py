"""The supervisor: starts an engine's processes, waits until they can work, watches them, and stops them in order."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

import msgspec
from msgspec.structs import replace

from ..ipc.messages.config import EngineConfig
from ..ipc.messages.control import ActorReady, Stop
from ..ipc.messages.failure import Failure
from ..ipc.parking import Signal, wait_any
from .child import Child, Ends
from .errors import EngineStartError, failure_text
from .logs import logger
from .postmortem_writer import PostmortemWriter
from .recovery import HELLO_TIMEOUT, Group, Recovery
from .topology import Topology

DEAD_GRACE = 1.0  # seconds to stop for the processes of an engine of which one has died: nobody waits for their work
_STOP_TURN = {"engine_core": 1, "worker": 2}  # by kind; frontends stop first, and a core tells its workers itself


class ProcessInfo(msgspec.Struct, frozen=True):
    """A line of the process table."""

    actor: str
    kind: str
    pid: int
    ready_seconds: float  # from the start of the engine; 0 for the process that started it
    phases: dict[str, float] = {}  # where its start-up time went, in seconds


class Observer(Protocol):
    """Who is told of deaths and restarts."""

    def died(self, recovery: Recovery) -> None:
        """Processes have ended. Called before their successors start, when all that they had sent can be received."""

    def works_again(self, seconds: float) -> None:
        """The engine was held up for so long, and can work again."""


class Supervisor:
    """Runs the child processes of one engine: `async with Supervisor(config) as supervisor`.

    Leaving the block stops them in order and kills what still runs after `shutdown_timeout` seconds; after DEAD_GRACE when one
    has failed, at once when one is not ready.
    """

    def __init__(self, config: EngineConfig, *, num_frontends: int = 1) -> None:
        """Make the mailboxes, also for frontends that others start: they attach to those of their number in `topology`.

        Raises EngineStartError on a system that lacks what mailboxes are made of, or the memory for them.
        """
        missing = [name for name in ("memfd_create", "eventfd", "pidfd_open") if not hasattr(os, name)]
        if missing:
            raise EngineStartError(f"Ringpost runs on Linux 5.3 or newer only: this system has no {', '.join(missing)}")
        self._config = config
        self._started = time.monotonic()
        self._failed = False
        self._killed = False
        self._told = Signal()  # that all is to end
        self._postmortems = PostmortemWriter(config.runtime)
        self.topology = Topology(config, num_frontends)
        self._children: list[Child] = []
        self._groups: list[Group] = []
        try:
            self._children += (Child(boot, self._started) for boot in self.topology.boots())
            self._groups = [Group(members, self.topology, config.runtime) for members in self._members()]
        except BaseException:
            self._release()
            raise

    async def __aenter__(self) -> Self:
        try:
            for child in self._children:
                child.start()
        except BaseException:
            await self._stop(grace=0)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        grace = self._config.runtime.shutdown_timeout if self._all_ready() else 0
        await self._stop(min(grace, DEAD_GRACE) if self._failed else grace)

    async def wait_ready(self) -> Failure | None:
        """Return None when every child can work, or the Failure of the first that cannot or is late.

        The limits are HELLO_TIMEOUT and then `startup_timeout`, both from the start of the engine.
        """
        limit = self._config.runtime.startup_timeout
        if limit > HELLO_TIMEOUT:
            failure = await self._wait_all(lambda child: child.greeted, HELLO_TIMEOUT, f"{HELLO_TIMEOUT:g} s")
            if failure is not None:
                return failure
        return await self._wait_all(lambda child: child.ready is not None, limit, f"startup_timeout={limit:g} s")

    async def _wait_all(self, reached: Callable[[Child], bool], seconds: float, limit: str) -> Failure | None:
        """Wait until every child has reached something, for so many seconds from the start of the engine, `limit` in words."""
        try:
            async with asyncio.timeout(self._started + seconds - time.monotonic()):
                while (failure := self._first_failure()) is None and not all(map(reached, self._children)):
                    await self._wait_for_news()
                return failure
        except TimeoutError:
            # Who waits for others comes before them in the list, so the last one is to blame.
            return [child for child in self._children if not reached(child)][-1].describe_lateness(limit)

    def _members(self) -> list[list[Child]]:
        """The children by group: each core with its workers."""
        cores = sorted({child.boot.core for child in self._children})
        return [[child for child in self._children if child.boot.core == core] for core in cores]

    async def run(self, observer: Observer) -> Failure:
        """Restart what dies, until `max_restarts` has it otherwise; returns the Failure of the process that dies last.

        Only after `wait_ready`. What is known about each that dies goes into a file, which the log names.
        """
        failure = None
        while failure is None:
            for group in self._groups:
                failure = failure or self._look(group, observer)
            if failure is None:
                await self._wait_until(min(filter(None, (group.deadline() for group in self._groups)), default=None))
        self._failed = True
        for child in self._children:  # last, since it is the end of whoever waits for them
            if not child.running:
                self.topology.mark_gone(child.boot)
        return failure

    def _look(self, group: Group, observer: Observer) -> Failure | None:
        """Do in a group what is to be done now; returns the Failure by which the engine ends."""
        now = time.monotonic()
        if lost := group.look(now):
            recovery = group.recover(lost, now)
            if self._killed:
                recovery = replace(recovery, delay=None)
            self._report(recovery)
            observer.died(recovery)
            if recovery.delay is None:
                return recovery.failure
            group.renew(lost, recovery.failure)
        if self._killed and group.down is not None:
            return group.down[0]
        if group.start_at is not None and now >= group.start_at:
            group.start(now)
        if seconds := group.settle(now):
            observer.works_again(seconds)
        return None

    async def _wait_until(self, deadline: float | None) -> None:
        """Wait for news, at most until this moment of CLOCK_MONOTONIC."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                await self._wait_for_news()

    def _report(self, recovery: Recovery) -> None:
        """Say who died and why, and have what is known of them written down."""
        goes_on = "it is not replaced" if recovery.delay is None else f"it is being replaced (epoch {recovery.epoch})"
        for death in recovery.deaths:
            logger.error("%s; %s", failure_text(death.failure), goes_on)
            if death.failure.traceback:
                logger.error("%s: %s", death.actor, death.failure.traceback)
            self._postmortems.write(death.actor, death.snapshot)

    def replace_hung(self, actor: str, what: str) -> None:
        """Kill an actor that hangs in something, so that it gets a successor."""
        for group in self._groups:
            group.replace_hung(actor, what)

    @property
    def down(self) -> Failure | None:
        """Why the engine is held up: the death of a process that is being replaced. None while it works."""
        return next((group.down[0] for group in self._groups if group.down is not None), None)

    def _all_ready(self) -> bool:
        return all(child.ready for child in self._children)

    def _first_failure(self) -> Failure | None:
        """Take what the children said, and look whether one failed or ended."""
        for child in self._children:
            child.take_messages()
            if child.failure is None and child.running:
                continue
            self._failed = True
            if not child.running:
                child.body.reap(timeout=1)
                child.take_messages()  # it may have spoken just before its end
                self.topology.mark_gone(child.boot)
            return child.describe_death()
        return None

    async def _wait_for_news(self) -> None:
        """Wait for a message of a child or the end of one."""
        with Ends([child for child in self._children if child.running]) as ends:
            await wait_any([*(child.receiver for child in self._children), ends, self._told])
        self._told.clear()

    async def _stop(self, grace: float) -> None:
        """Stop every child within `grace` seconds in all, kill the rest, release everything; also when cancelled."""
        started = [child for child in self._children if child.started]
        try:
            if grace > 0:
                await self._stop_in_order(started, grace)
        finally:
            self.kill()
            try:
                for child in started:
                    await child.body.wait()
                await self._postmortems.finish()
            finally:
                self._release()

    async def _stop_in_order(self, children: Sequence[Child], grace: float) -> None:
        """Ask one kind after another to stop, each when those that use it have ended. Names whom it leaves running."""
        deadline = time.monotonic() + grace
        for turn in range(1 + max(_STOP_TURN.values())):
            asked = [child for child in children if child.running and _STOP_TURN.get(child.boot.kind, 0) == turn]
            for child in asked:
                child.tell(Stop())
            if late := await self._wait_ended(asked, deadline - time.monotonic()):
                for child in late:
                    logger.warning("%s did not stop in %g s and is killed", child.actor, grace)
                for child in children:
                    if child.running and child not in late:
                        logger.warning("%s is killed before its turn to stop", child.actor)
                return

    def _release(self) -> None:
        """Close the mailboxes and forget the processes, which have ended or never begun."""
        for group in self._groups:
            group.close()
        for child in self._children:
            child.close()
        self._groups.clear()
        self._children.clear()
        self.topology.close()

    async def _wait_ended(self, children: Sequence[Child], seconds: float) -> list[Child]:
        """Wait until the processes have ended; returns those that have not after so many seconds."""
        running = list(children)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while running := [child for child in children if child.running]:
                    with Ends(running) as ends:
                        await wait_any([ends])
        return running

    def kill(self) -> None:
        """End every process at once and for good; leaving the block still reaps them."""
        self._killed = True
        self._told.set()
        for child in self._children:
            if child.running:
                child.body.kill()

    def ready_of(self, kind: str) -> ActorReady:
        """What the first child of a kind learned while it started. Only after `wait_ready`."""
        ready = next(child.ready for child in self._children if child.boot.kind == kind)
        assert ready is not None
        return ready

    def process_table(self) -> list[ProcessInfo]:
        """The processes of the engine, the one that started it first. One that is to be started again has no line."""
        own = ProcessInfo("frontend0", "frontend", os.getpid(), 0.0)
        return [own, *(_process_info(child) for child in self._children if child.started)]


def _process_info(child: Child) -> ProcessInfo:
    phases = child.ready.seconds if child.ready is not None else {}
    return ProcessInfo(child.actor, child.boot.kind, child.pid, child.ready_seconds, phases)
