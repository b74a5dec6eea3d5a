"""The supervisor: starts an engine's processes, waits until they can work, watches them, and stops them in order."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from ..ipc.messages.config import EngineConfig
from ..ipc.messages.control import ActorReady
from ..ipc.messages.failure import Failure
from ..ipc.parking import wait_any
from .child import Child, Ends
from .errors import EngineStartError
from .logs import logger
from .topology import Topology

HELLO_TIMEOUT = 30.0  # seconds until a process has said Hello, which it does before it loads anything large
DEAD_GRACE = 1.0  # seconds to stop for the processes of an engine of which one has died: nobody waits for their work
_STOP_TURN = {"engine_core": 1, "worker": 2}  # by kind; frontends stop first, and a core tells its workers itself


class ProcessInfo(msgspec.Struct, frozen=True):
    """A line of the process table."""

    actor: str
    kind: str
    pid: int
    ready_seconds: float  # from the start of the engine; 0 for the process that started it
    phases: dict[str, float] = {}  # where its start-up time went, in seconds


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
        self.topology = Topology(config, num_frontends)
        self._children: list[Child] = []
        try:
            self._children += (Child(boot, self._started) for boot in self.topology.boots())
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

    async def wait_failed(self) -> Failure:
        """Return the Failure of the first child that ends or fails."""
        while (failure := self._first_failure()) is None:
            await self._wait_for_news()
        return failure

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
        with Ends(self._children) as ends:
            await wait_any([*(child.receiver for child in self._children), ends])

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
            finally:
                self._release()

    async def _stop_in_order(self, children: Sequence[Child], grace: float) -> None:
        """Ask one kind after another to stop, each when those that use it have ended. Names whom it leaves running."""
        deadline = time.monotonic() + grace
        for turn in range(1 + max(_STOP_TURN.values())):
            asked = [child for child in children if child.running and _STOP_TURN.get(child.boot.kind, 0) == turn]
            for child in asked:
                child.ask_to_stop()
            if late := await self._wait_ended(asked, deadline - time.monotonic()):
                for child in late:
                    logger.warning("%s did not stop in %g s and is killed", child.actor, grace)
                for child in children:
                    if child.running and child not in late:
                        logger.warning("%s is killed before its turn to stop", child.actor)
                return

    def _release(self) -> None:
        """Close the mailboxes and forget the processes, which have ended or never begun."""
        for child in self._children:
            child.close()
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
        """End every process at once; leaving the block still reaps them."""
        for child in self._children:
            if child.running:
                child.body.kill()

    def ready_of(self, kind: str) -> ActorReady:
        """What the first child of a kind learned while it started. Only after `wait_ready`."""
        ready = next(child.ready for child in self._children if child.boot.kind == kind)
        assert ready is not None
        return ready

    def process_table(self) -> list[ProcessInfo]:
        """The processes of the engine, the one that started it first."""
        own = ProcessInfo("frontend0", "frontend", os.getpid(), 0.0)
        return [own, *map(_process_info, self._children)]


def _process_info(child: Child) -> ProcessInfo:
    phases = child.ready.seconds if child.ready is not None else {}
    return ProcessInfo(child.actor, child.boot.kind, child.pid, child.ready_seconds, phases)
