"""The supervisor: starts an engine's processes, waits until they can work, watches them, and stops them in order."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from ..ipc.errors import MailboxError, WouldBlock
from ..ipc.mailbox import Receiver, Sender
from ..ipc.messages.config import EngineConfig
from ..ipc.messages.control import ActorReady, FromActor, Hello, Stop, ToActor
from ..ipc.messages.failure import Failure
from ..ipc.parking import wait_any
from .boot import Boot
from .errors import EngineStartError, failure_text
from .logs import logger
from .process import ActorProcess
from .topology import Topology


class ProcessInfo(msgspec.Struct, frozen=True):
    """A line of the process table."""

    actor: str
    kind: str
    pid: int
    ready_seconds: float  # from the start of the engine; 0 for the process that started it
    phases: dict[str, float] = {}  # where its start-up time went, in seconds


class Child:
    """A process and the supervisor's line to it."""

    def __init__(self, boot: Boot) -> None:
        self.boot = boot
        self.process = ActorProcess(boot, boot.descriptors())
        self.sender: Sender[ToActor] = Sender(boot.to_actor.duplicate(), ToActor)
        try:
            self.receiver: Receiver[FromActor] = Receiver(boot.from_actor.duplicate(), FromActor)
        except BaseException:
            self.sender.close()
            raise
        self.pid = 0
        self.ready: ActorReady | None = None
        self.ready_seconds = 0.0
        self.failure: Failure | None = None

    @property
    def actor(self) -> str:
        """Name of the actor."""
        return self.boot.actor

    def start(self) -> None:
        """Start the process."""
        self.process.start()
        self.pid = self.process.pid or 0

    def ask_to_stop(self) -> None:
        """Send Stop, if the mailbox still takes it."""
        try:
            self.sender.send_nowait(Stop())
        except MailboxError as error:
            logger.warning("%s cannot be asked to stop: %s", self.actor, error)

    def describe_death(self) -> Failure:
        """Why the process ended: what it said itself, else its exit code and its last lines."""
        if self.failure is not None:
            return self.failure
        code = self.process.exitcode
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
        last = [line for line in self.process.tail if line.strip()]
        message = f"{how}; its last line: {last[-1]}" if last else how
        return Failure(self.actor, self.pid, "ProcessDied", message, "\n".join(last))

    def close(self) -> None:
        """Release the mailboxes and the process object. The process must have ended."""
        self.sender.close()
        self.receiver.close()
        if self.process.pid is not None:
            self.process.close()


class Supervisor:
    """Runs the child processes of one engine: `async with Supervisor(config) as supervisor`.

    Leaving the block stops them: Stop, then after `shutdown_timeout` seconds SIGKILL; at once if one is not ready.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Make the mailboxes. Raises EngineStartError on a system that lacks what they are made of."""
        missing = [name for name in ("memfd_create", "eventfd", "pidfd_open") if not hasattr(os, name)]
        if missing:
            raise EngineStartError(f"Ringpost runs on Linux 5.3 or newer only: this system has no {', '.join(missing)}")
        self._config = config
        self._started = time.monotonic()
        self.topology = Topology(config)
        self._children: list[Child] = []
        try:
            self._children += (Child(boot) for boot in self.topology.boots())
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
        await self._stop(self._config.runtime.shutdown_timeout if self._all_ready() else 0)

    async def wait_ready(self) -> Failure | None:
        """Return None when every child can work, or the Failure of the first that cannot."""
        try:
            async with asyncio.timeout(self._config.runtime.startup_timeout):
                while (failure := self._first_failure()) is None and not self._all_ready():
                    await self._wait_for_news()
                return failure
        except TimeoutError:
            late = [child for child in self._children if child.ready is None]
            limit = self._config.runtime.startup_timeout
            names = ", ".join(child.actor for child in late)
            pid = late[0].pid
            return Failure(late[0].actor, pid, "TimeoutError", f"not ready after startup_timeout={limit:g} s: {names}")

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
            self._take_messages(child)
            if child.failure is not None:
                return child.failure
            if child.process.exitcode is not None:
                child.process.reap(timeout=1)
                self._take_messages(child)  # it may have spoken just before its end
                self.topology.mark_gone(child.boot)
                return child.describe_death()
        return None

    async def _wait_for_news(self) -> None:
        """Wait for a message of a child or the end of one."""
        with _Sentinels(self._children) as sentinels:
            await wait_any([*(child.receiver for child in self._children), sentinels])

    def _take_messages(self, child: Child) -> None:
        try:
            while True:
                message = child.receiver.receive_nowait()
                if isinstance(message, ActorReady):
                    child.ready = message
                    child.ready_seconds = time.monotonic() - self._started
                    logger.debug("%s is ready after %.2f s", child.actor, child.ready_seconds)
                elif isinstance(message, Failure):
                    child.failure = message
                    logger.debug("%s\n%s", failure_text(message), message.traceback)
                else:
                    assert isinstance(message, Hello)
        except WouldBlock:
            pass
        except MailboxError as error:
            child.failure = Failure(child.actor, child.pid, type(error).__name__, str(error))

    async def _stop(self, grace: float) -> None:
        """Ask every child to stop, wait `grace` seconds in all, kill the rest, release everything; also when cancelled."""
        started = [child for child in self._children if child.process.pid is not None]
        try:
            if grace > 0:
                for child in started:
                    child.ask_to_stop()
                for child in await self._wait_ended(started, grace):
                    logger.warning("%s did not stop in %g s and is killed", child.actor, grace)
        finally:
            for child in started:
                if child.process.exitcode is None:
                    child.process.kill()
            for child in started:
                child.process.reap(timeout=None)
            self._release()

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
                while running := [child for child in children if child.process.exitcode is None]:
                    with _Sentinels(running) as sentinels:
                        await wait_any([sentinels])
        return running

    def kill(self) -> None:
        """End every process at once; leaving the block still reaps them."""
        for child in self._children:
            if child.process.pid is not None and child.process.exitcode is None:
                child.process.kill()

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


class _Sentinels:
    """Ends of processes as something to wait for (Parkable). Watches the descriptors inside its `with` block only."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children
        self._fds = [child.process.sentinel for child in children]
        self._wake: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for fd in self._fds:
            self._loop.add_reader(fd, self._ended)
        return self

    def __exit__(self, *exc: object) -> None:
        for fd in self._fds:
            self._loop.remove_reader(fd)

    def _ended(self) -> None:
        if self._wake is not None:
            self._wake()

    def arm(self, wake: Callable[[], None]) -> None:
        """See Parkable."""
        self._wake = wake

    def ready(self) -> bool:
        """Whether a process has ended."""
        return any(child.process.exitcode is not None for child in self._children)

    def disarm(self) -> None:
        """See Parkable."""
        self._wake = None
