"""Child: one actor of the engine as its supervisor sees it: its line, what it has said, and why it is late or dead."""

import signal
import time
from collections.abc import Callable, Sequence
from typing import Self

from ..ipc.attach import attach_receiver
from ..ipc.errors import MailboxError, WouldBlock
from ..ipc.lanes import LaneSender
from ..ipc.mailbox import Receiver
from ..ipc.messages.control import ActorReady, FromActor, Hello, ToActor
from ..ipc.messages.failure import Failure
from .body import Body
from .boot import MESSAGE_LIMIT, Boot
from .errors import EngineStartError, failure_text
from .logs import logger
from .process import ActorProcess
from .task_child import ActorTask

# What a process does between its Hello and its ActorReady.
_START_UP = {"engine_core": "waiting for its workers", "worker": "loading the model"}


def _body(boot: Boot) -> Body:
    return ActorTask(boot) if boot.config.runtime.single_process else ActorProcess(boot, boot.descriptors())


class Child:
    """A process, or a task that takes its place, and the supervisor's line to it."""

    def __init__(self, boot: Boot, began: float) -> None:
        """Attach the line; the process is started later. `began` is the start of the engine, in CLOCK_MONOTONIC.

        Attributes:
            began: when its start began; of a successor, when the one before it had ended.
        """
        self._prepare(boot, began)
        self.sender: LaneSender[ToActor] = LaneSender(boot.to_actor.duplicate(), ToActor)
        try:
            self.receiver: Receiver[FromActor] = attach_receiver(boot.from_actor.duplicate(), FromActor)
        except BaseException:
            self.sender.close()
            raise

    def _prepare(self, boot: Boot, began: float) -> None:
        self.boot = boot
        self.began = began
        self.body: Body = _body(boot)
        self.pid = 0
        self.greeted = False  # its Hello has come
        self.ready: ActorReady | None = None
        self.ready_seconds = 0.0
        self.failure: Failure | None = None  # what it said itself
        self.sentence: Failure | None = None  # why it was killed by its supervisor
        self.reason = ""  # why it was killed, in a word

    def succeed(self, boot: Boot) -> None:
        """Make ready for a successor of the process, which has ended and whose sides are vacant, or was never started."""
        if self.started:
            self.body.close()
        self._prepare(boot, time.monotonic())

    def condemn(self, reason: str, sentence: Failure | None = None) -> None:
        """Kill it; the first reason stands."""
        if not self.reason:
            self.reason, self.sentence = reason, sentence
        if self.running:
            self.body.kill()

    @property
    def actor(self) -> str:
        """Name of the actor."""
        return self.boot.actor

    def start(self) -> None:
        """Start the process. Raises EngineStartError, naming the actor, when the system refuses."""
        try:
            self.body.start()
        except OSError as error:
            raise EngineStartError(f"{self.actor} cannot be started: {error}") from error
        self.pid = self.body.pid or 0

    @property
    def started(self) -> bool:
        """Whether there ever was a process."""
        return self.body.pid is not None

    @property
    def running(self) -> bool:
        """Whether the process has begun and not ended."""
        return self.started and self.body.exitcode is None

    def tell(self, message: ToActor) -> bool:
        """Send in the urgent lane, or in the other one where that is full; False if the mailbox does not take it."""
        try:
            if not self.sender.send_urgent(message):
                self.sender.ordered.send_nowait(message)
        except MailboxError as error:
            logger.warning("%s cannot be told %s: %s", self.actor, type(message).__name__, error)
            return False
        return True

    def take_messages(self) -> None:
        """Take what it has said since the last time."""
        try:
            while True:
                message = self.receiver.receive_nowait()
                if isinstance(message, ActorReady):
                    if self.ready is None:
                        self.ready_seconds = time.monotonic() - self.began
                        logger.debug("%s is ready after %.2f s", self.actor, self.ready_seconds)
                    self.ready = message
                elif isinstance(message, Failure):
                    self.failure = message
                    logger.debug("%s\n%s", failure_text(message), message.traceback)
                else:
                    assert isinstance(message, Hello)
                    self.greeted = True
        except WouldBlock:
            pass
        except MailboxError as error:
            self.failure = Failure(self.actor, self.pid, type(error).__name__, str(error))

    def describe_death(self) -> Failure:
        """Why the process ended: what it said itself, else its exit code and its last lines."""
        known = self.failure or self.sentence
        if known is not None:
            return known
        if self.body.exitcode == -signal.SIGKILL:  # it had no time to say anything about it
            return Failure(self.actor, self.pid, "ProcessDied", self.body.ending)
        return self.describe("ProcessDied", self.body.ending)

    def describe_lateness(self, limit: str) -> Failure:
        """Where it is in its start-up, when it should have been further by `limit`, in words."""
        if not self.greeted:
            return self.describe("TimeoutError", f"no Hello from its process after {limit}")
        return self.describe("TimeoutError", f"not ready after {limit}, still {_START_UP.get(self.boot.kind, 'starting')}")

    def describe(self, kind: str, what: str) -> Failure:
        """A Failure of the actor, with the last line that it printed."""
        last = [line for line in tuple(self.body.tail) if line.strip()]
        message = f"{what}; its last line: {last[-1]}"[:MESSAGE_LIMIT] if last else what
        return Failure(self.actor, self.pid, kind, message, "\n".join(last))

    def close(self) -> None:
        """Release the mailboxes and the process object. The process must have ended."""
        self.sender.close()
        self.receiver.close()
        if self.started:
            self.body.close()


class Ends:
    """Ends of children as something to wait for (Parkable). Watches them inside its `with` block only."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children
        self._wake: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        for child in self._children:
            child.body.watch(self._ended)
        return self

    def __exit__(self, *exc: object) -> None:
        for child in self._children:
            child.body.unwatch()

    def _ended(self) -> None:
        if self._wake is not None:
            self._wake()

    def arm(self, wake: Callable[[], None]) -> None:
        """See Parkable."""
        self._wake = wake

    def ready(self) -> bool:
        """Whether a process has ended."""
        return any(not child.running for child in self._children)

    def disarm(self, waited: int) -> None:
        """See Parkable."""
        self._wake = None

    def count_lost_wakeup(self) -> None:
        """See Parkable."""
