"""What is known about a process that has just died: taken at once, looked through and written down later."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from ..ipc.attach import MailboxHandle
from ..ipc.board import BoardHandle, BoardReader
from ..ipc.codec import fingerprint_of
from ..ipc.errors import MailboxError
from ..ipc.messages.control import FromActor, ToActor
from ..ipc.messages.failure import Failure
from ..ipc.messages.outputs import OutputMessage
from ..ipc.messages.plans import PlanMessage
from ..ipc.messages.requests import RequestMessage
from ..ipc.messages.results import ResultMessage
from ..ipc.messages.status import ActorStatus
from ..ipc.ring import RingHandle
from ..ipc.ring_history import PastMessage, RingHistory, remember
from .body import LINE_LIMIT
from .boot import Boot
from .postmortem_file import FORMAT, MailboxPart, MessagePart, Postmortem, write_postmortem
from .redaction import plain

_UNIONS: tuple[Any, ...] = (ToActor, FromActor, RequestMessage, OutputMessage, PlanMessage, ResultMessage)


class Snapshot(msgspec.Struct, frozen=True):
    """Copies of all there was. Later changes to the mailboxes, as by a successor, do not show."""

    time: datetime
    clock: float  # the same in CLOCK_MONOTONIC
    boot: Boot
    failure: Failure
    tail: list[str]
    status: ActorStatus | None
    inbound: list[tuple[str, int, RingHistory]]  # name, slot
    outbound: list[tuple[str, RingHistory]]

    def write(self, directory: Path, *, prompts: bool) -> Path:
        """Write it into a new file of the directory; returns its path. Takes up to a second: call it in a thread.

        Without `prompts` what users and the model said is left out. Raises OSError.
        """
        return write_postmortem(self.postmortem(prompts=prompts), directory)

    def postmortem(self, *, prompts: bool) -> Postmortem:
        """What the file holds."""
        boot, failure = self.boot, self.failure
        return Postmortem(
            format=FORMAT,
            time=self.time.isoformat(timespec="seconds"),
            clock=self.clock,
            ringpost=version("ringpost"),
            actor=boot.actor,
            kind=boot.kind,
            pid=failure.pid,
            epoch=boot.epoch,
            failure={name: _clean(getattr(failure, name)) for name in ("kind", "message", "traceback")},
            status=None if self.status is None else plain(self.status, prompts=True),
            tail=[_clean(line)[:LINE_LIMIT] for line in self.tail],
            prompts=prompts,
            mailboxes=[
                *(_part(name, history, slot, prompts=prompts) for name, slot, history in self.inbound),
                *(_part(name, history, None, prompts=prompts) for name, history in self.outbound),
            ],
        )


def _clean(text: str) -> str:
    """The same text where it can be written; lone surrogates cannot."""
    return text.encode(errors="replace").decode()


def _part(name: str, history: RingHistory, slot: int | None, *, prompts: bool) -> MailboxPart:
    """A mailbox that the process read in this slot, or wrote."""
    reading = history.reading
    readers = reading.readers if slot is None else reading.readers[slot : slot + 1]
    waiting = [one for one in readers if one.state != "closed" and one.position != reading.writer.position]
    union = next((union for union in _UNIONS if fingerprint_of(union) == history.fingerprint), None)
    return MailboxPart(
        name=name,
        direction="out" if slot is None else "in",
        capacity=reading.capacity,
        unread=max([0, *(reading.writer.messages - one.messages for one in waiting)]),
        writer=reading.writer,
        readers=reading.readers,
        messages=[_message(one, slot, prompts=prompts) for one in ([] if union is None else history.messages(union))],
    )


def _message(past: PastMessage, slot: int | None, *, prompts: bool) -> MessagePart:
    return MessagePart(
        type="" if past.message is None else type(past.message).__name__,
        unread=bool(past.unread_by) if slot is None else slot in past.unread_by,
        epoch=past.epoch,
        sequence=past.sequence,
        size=past.size,
        fields=plain(past.message, prompts=prompts) or {},
        problem=past.problem,
    )


def capture(boot: Boot, failure: Failure, tail: Sequence[str]) -> Snapshot:
    """Copy what the mailboxes and the board of a reaped process hold; `tail` are the lines that it printed last.

    Call it before a successor is started. Takes a millisecond or so and raises nothing: what cannot be read, and mailboxes
    within one process, are left out.
    """
    inbound = [(handle.name, slot, history) for handle, slot in boot.inbound() if (history := _history(handle))]
    outbound = [(handle.name, history) for handle in boot.outbound() if (history := _history(handle))]
    moment = datetime.now(UTC)
    return Snapshot(moment, time.monotonic(), boot, failure, list(tail), _status(boot.status), inbound, outbound)


def _history(handle: MailboxHandle) -> RingHistory | None:
    if not isinstance(handle, RingHandle):
        return None
    try:
        return remember(handle.memory)
    except (OSError, MailboxError):
        return None


def _status(handle: BoardHandle) -> ActorStatus | None:
    try:
        board = BoardReader(handle, ActorStatus)
        try:
            return board.read()
        finally:
            board.close()
    except (OSError, MailboxError, ArithmeticError, LookupError, ValueError):
        return None
