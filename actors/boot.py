"""How a child process begins: its boot record, its log, its event loop, and its end when the supervisor dies."""

import argparse
import asyncio
import gc
import mmap
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import msgspec

from ..ipc.attach import MailboxHandle, attach_sender
from ..ipc.board import BoardHandle, BoardWriter
from ..ipc.errors import MailboxError
from ..ipc.lanes import LaneReceiver, Lanes
from ..ipc.mailbox import Sender
from ..ipc.messages.config import EngineConfig, RuntimeConfig
from ..ipc.messages.control import FromActor, Hello, ToActor
from ..ipc.messages.failure import Failure
from ..ipc.messages.status import ActorStatus
from .logs import configure_logging, logger
from .loops import loop_factory
from .start_phases import EXEC, process_age
from .status import StatusBlock

EXIT_FAILED = 1
MESSAGE_LIMIT, TRACEBACK_LIMIT = 2000, 5000  # characters of at most 4 bytes in a Failure, so that it always fits a mailbox


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a child is told. A kind uses the mailboxes it has an end of; the other lists are empty."""

    actor: str  # unique in the engine, for logs: core0, worker0.1
    kind: str  # module under ringpost.actors
    epoch: int
    supervisor: int  # pid
    config: EngineConfig
    to_actor: Lanes
    from_actor: MailboxHandle
    status: BoardHandle  # where it posts what it is doing
    core: int = 0  # number of the core that it is or works for
    rank: int | None = None  # of a worker: its order in the group and its slot in plans
    requests: list[Lanes] = []
    outputs: list[MailboxHandle] = []
    plans: MailboxHandle | None = None
    results: list[MailboxHandle] = []
    terminal: int | None = None  # the supervisor's standard error, where that is a terminal

    def descriptors(self) -> list[int]:
        """Every descriptor the child inherits."""
        handles = [self.to_actor, self.from_actor, *self.requests, *self.outputs, *self.results]
        if self.plans is not None:
            handles.append(self.plans)
        return [self.status.memory, *(fd for handle in handles for fd in handle.descriptors())]

    def inbound(self) -> list[tuple[MailboxHandle, int]]:
        """The mailboxes it reads, each with its slot there."""
        handles = [lane for lanes in (self.to_actor, *self.requests) for lane in (lanes.ordered, lanes.urgent)]
        if self.rank is None:
            return [(handle, 0) for handle in [*handles, *self.results]]
        assert self.plans is not None
        return [*((handle, 0) for handle in handles), (self.plans, self.rank)]

    def outbound(self) -> list[MailboxHandle]:
        """The mailboxes it writes."""
        if self.rank is not None:
            return [self.from_actor, *self.results]
        return [self.from_actor, *self.outputs, *([] if self.plans is None else [self.plans])]


def encode_boot(boot: Boot) -> bytes:
    """The record as bytes."""
    return msgspec.msgpack.encode(boot)


def _read_boot() -> Boot:
    parser = argparse.ArgumentParser(description="A process of the engine; started by the supervisor only.")
    parser.add_argument("--actor", required=True)
    parser.add_argument("--boot", type=int, required=True)
    fd: int = parser.parse_args().boot
    with mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ) as record:
        boot = msgspec.msgpack.decode(record, type=Boot)
    os.close(fd)
    return boot


def _die_with(supervisor: int) -> None:
    """End this process at once when the supervisor has ended, whatever the main thread is doing.

    A pidfd becomes readable when its process ends. It cannot be defeated by a copy, as a pipe is when the user's program
    forks. Opening it and then comparing the parent closes the race with a supervisor that died, and whose number was reused.
    """
    try:
        watched = os.pidfd_open(supervisor)
    except ProcessLookupError:
        os._exit(EXIT_FAILED)
    if os.getppid() != supervisor:
        os._exit(EXIT_FAILED)

    def watch() -> None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.poll()
        os._exit(EXIT_FAILED)

    threading.Thread(target=watch, name="supervisor watch", daemon=True).start()


class Control:
    """A child's line to its supervisor, and the status that it posts for everyone.

    Attributes:
        began: when the child began, in CLOCK_MONOTONIC.
        phases: where the time of its start went before that, in seconds.
    """

    def __init__(self, boot: Boot, began: float) -> None:
        self.began = began
        self.phases: dict[str, float] = {}
        self.sender: Sender[FromActor] = attach_sender(boot.from_actor, FromActor, boot.epoch)
        self.receiver: LaneReceiver[ToActor] = LaneReceiver(boot.to_actor, ToActor, boot.epoch)
        self._board = BoardWriter(boot.status, ActorStatus)
        self.status = StatusBlock(
            self._board.post, actor=boot.actor, kind=boot.kind, supervisor=boot.supervisor, epoch=boot.epoch
        )

    def close(self) -> None:
        """Give the board's memory back, where no end of a process does. The line stays as it is: its end is no message."""
        self._board.close()


Main = Callable[[Boot, Control], Coroutine[Any, Any, None]]


def run_actor(main: Main, began: float | None = None) -> NoReturn:
    """Body of a child's `__main__`: run `main` on its own event loop; a failure is told to the supervisor, then exit code 1.

    `began` is when the process began, where that was before this call.
    """
    began = time.monotonic() if began is None else began
    boot = _read_boot()
    _die_with(boot.supervisor)
    # A signal to the whole group, as of a terminal or of systemd, is the supervisor's to handle: it stops us in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    configure_logging(boot.actor, boot.config.runtime, boot.rank)
    control = Control(boot, began)
    control.phases[EXEC] = max(0.0, process_age() - (time.monotonic() - began))
    code = 0
    try:
        control.sender.send_nowait(Hello(boot.actor, os.getpid(), boot.epoch))
        with asyncio.Runner(loop_factory=loop_factory(boot.config.runtime)) as runner:
            runner.run(main(boot, control))
    except BaseException as error:  # noqa: BLE001 (whatever it is, the supervisor must learn it)
        code = EXIT_FAILED
        tell_failure(boot, control, error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nothing is left to release, and the interpreter's own end takes long with torch loaded


def tell_failure(boot: Boot, control: Control, error: BaseException) -> None:
    """Post that the actor has failed, and tell the supervisor why."""
    control.status.state("failed")
    cause = first_cause(error)
    failure = describe_failure(boot.actor, cause)
    logger.debug("%s", failure.traceback)
    try:
        control.sender.send_nowait(failure)
    except MailboxError as reason:
        logger.error("%s; and the supervisor could not be told: %s", failure.message, reason)


@contextmanager
def loading() -> Iterator[None]:
    """A block that imports much. What it makes lives for good, so no garbage collection looks at it, in the block or later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def freeze_memory(config: RuntimeConfig) -> None:
    """What start-up made lives for good, so later collections need not look at it; unless the process is the user's."""
    if not config.single_process:
        gc.collect()
        gc.freeze()


def describe_failure(actor: str, error: BaseException, request: int | None = None) -> Failure:
    """A Failure that tells what went wrong here."""
    text = "".join(traceback.format_exception(error))
    return Failure(actor, os.getpid(), type(error).__name__, str(error)[:MESSAGE_LIMIT], text[-TRACEBACK_LIMIT:], request)


def first_cause(error: BaseException) -> BaseException:
    """The first exception inside nested groups: what a task group was ended by."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
