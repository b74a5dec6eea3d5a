"""One look at the engines that run: what is on the boards of their actors and in the rings of their mailboxes.

Everything is read, nothing is written, and no engine has to answer. What cannot be read is left out of the look.
"""

import struct
import time
from collections.abc import Collection

import msgspec

from ..ipc.board import BoardHandle, BoardReader
from ..ipc.errors import MailboxError
from ..ipc.messages.status import ActorStatus
from ..ipc.ring_view import RingReading, RingView
from .engine_finder import FoundEngine, Identity, Segment, Usage, find_engines, open_segment, usage_of

_BOARD = "status["
# What memory may make of a look that other processes are changing, or that only resembles ours.
_UNREADABLE = (OSError, ValueError, LookupError, OverflowError, struct.error, MailboxError)


class ActorReading(msgspec.Struct, frozen=True):
    """An actor at one moment. Without usage its process has ended."""

    status: ActorStatus
    usage: Usage | None


class EngineReading(msgspec.Struct, frozen=True):
    """An engine at one moment."""

    pids: frozenset[int]
    actors: dict[Identity, ActorReading]
    mailboxes: dict[Identity, tuple[str, RingReading]]


class Look(msgspec.Struct, frozen=True):
    """All engines at one moment, in seconds of CLOCK_MONOTONIC."""

    time: float
    engines: list[EngineReading]

    @property
    def pids(self) -> frozenset[int]:
        """Every process of every engine."""
        return frozenset[int]().union(*(engine.pids for engine in self.engines))


def look(pids: Collection[int] | None = None) -> Look:
    """All engines now, or only those that one of these processes belongs to."""
    now = time.monotonic()
    found = [_read(engine) for engine in find_engines() if pids is None or not engine.pids.isdisjoint(pids)]
    return Look(now, [engine for engine in found if engine.mailboxes or engine.actors])


def _read(found: FoundEngine) -> EngineReading:
    engine = EngineReading(found.pids, {}, {})
    for segment in found.segments:
        try:
            _read_segment(segment, engine)
        except _UNREADABLE:
            continue
    return engine


def _read_segment(segment: Segment, engine: EngineReading) -> None:
    handle = BoardHandle(segment.name, open_segment(segment))
    try:
        if segment.name.startswith(_BOARD):
            board = BoardReader(handle, ActorStatus)
            try:
                status = board.read()
            finally:
                board.close()
            if status is not None:
                usage = usage_of(status.pid) if status.pid in segment.paths else None
                engine.actors[segment.identity] = ActorReading(status, usage)
        else:
            ring = RingView(handle.memory)
            try:
                engine.mailboxes[segment.identity] = (segment.name, ring.read())
            finally:
                ring.close()
    finally:
        handle.close()
