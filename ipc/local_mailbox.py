"""Mailboxes within one process: encoded messages in a queue, with the contract, the bounds and the errors of the others.

For tests, and for an engine that runs in one process to be debugged. Used from one event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from . import frame
from .codec import Codec
from .errors import Broken, Closed, EndOfStream, MessageTooLarge, PeerGone, SchemaMismatch, WouldBlock
from .layout import ATTACHED, CLOSED, FREE, GONE, RECORD_BYTES, record_size
from .mailbox import Statistics
from .parking import wait_any
from .ring import MAX_MESSAGE

M = TypeVar("M")
Parts = list[bytes]  # an encoded message, and its payloads


@dataclass
class _Side:
    """What one side is and has done; it outlives the end that holds it."""

    state: int = FREE
    epoch: int = 0
    messages: int = 0
    position: int = 0  # bytes sent, or taken
    waits: int = 0
    wait_ns: int = 0
    lost: int = 0
    wake: Callable[[], None] | None = None

    def rouse(self) -> None:
        """Wake the task that waits at this side."""
        if self.wake is not None:
            self.wake()


@dataclass
class _Reader(_Side):
    queue: deque[tuple[Parts, int]] = field(default_factory=deque)  # each with the bytes it would take in a ring
    used: int = 0  # bytes in the queue


class Channel:
    """What lies between the ends."""

    def __init__(self, name: str, capacity: int, fingerprint: int, readers: int) -> None:
        self.name = name
        self.capacity = capacity
        self.fingerprint = fingerprint
        self.writer = _Side()
        self.readers = [_Reader() for _ in range(readers)]

    def used(self) -> int:
        """Bytes that the slowest reader has not taken. Raises Broken when none is left."""
        left = [reader.used for reader in self.readers if reader.state in (FREE, ATTACHED)]
        if not left:
            raise PeerGone(f"mailbox {self.name}: no reader is left")
        return max(left)

    def side(self, slot: int | None) -> _Side:
        """A reader, or the writer."""
        return self.writer if slot is None else self.readers[slot]

    def leave(self, slot: int | None, state: int) -> None:
        """A side ends; the other side learns it."""
        self.side(slot).state = state
        for other in self.readers if slot is None else [self.writer]:
            other.rouse()


class LocalHandle(msgspec.Struct, frozen=True, tag="local"):
    """Stands for a mailbox of this process where a RingHandle does between processes. It cannot cross to another."""

    name: str
    channel: Any  # a Channel

    def descriptors(self) -> list[int]:
        """None."""
        return []

    def duplicate(self) -> "LocalHandle":
        """The same mailbox."""
        return self

    def mark_gone(self, *, writer: bool, slot: int = 0) -> None:
        """Record that a side was ended without closing, and wake the other side."""
        which = None if writer else slot
        if self.channel.side(which).state in (ATTACHED, FREE):
            self.channel.leave(which, GONE)

    def vacate(self, *, writer: bool, slot: int = 0) -> None:
        """Record that a side was ended without closing and will have a successor."""
        side = self.channel.side(None if writer else slot)
        side.state, side.wake = FREE, None

    def close(self) -> None:
        """Nothing is held."""


def create_local(name: str, capacity: int, fingerprint: int, readers: int = 1) -> LocalHandle:
    """Make an empty mailbox; the arguments are those of `create_ring`."""
    return LocalHandle(name, Channel(name, capacity, fingerprint, readers))


class _End:
    """What both ends share."""

    def __init__(self, handle: LocalHandle, fingerprint: int, slot: int | None, epoch: int) -> None:
        self._channel: Channel = handle.channel
        self._slot = slot
        self._side = self._channel.side(slot)
        self.closed = False
        if fingerprint != self._channel.fingerprint:
            raise SchemaMismatch(
                f"mailbox {self.name}: made for messages {self._channel.fingerprint:#x}, this side speaks {fingerprint:#x}"
            )
        if self._side.state == ATTACHED:
            which = "writer" if slot is None else f"reader {slot}"
            raise Broken(f"mailbox {self.name}: its {which} is attached already (epoch {self._side.epoch})")
        self._side.state, self._side.epoch = ATTACHED, epoch

    @property
    def name(self) -> str:
        """Name of the mailbox, for errors and logs."""
        return self._channel.name

    def _check_open(self) -> None:
        if self.closed:
            which = "writer" if self._slot is None else "reader"
            raise Closed(f"mailbox {self.name}: its {which} was closed")

    def arm(self, wake: Callable[[], None]) -> None:
        """See Parkable."""
        self._check_open()
        if self._side.wake is not None:
            raise RuntimeError(f"mailbox {self.name}: two tasks wait at one end")
        self._side.wake = wake

    def disarm(self, waited: int) -> None:
        """See Parkable."""
        self._side.wake = None
        if waited:
            self._side.waits += 1
            self._side.wait_ns += waited

    def count_lost_wakeup(self) -> None:
        """See Parkable."""
        self._side.lost += 1

    def statistics(self) -> Statistics:
        """See the contract."""
        self._check_open()
        side = self._side
        return Statistics(
            messages=side.messages,
            bytes=side.position,
            waits=side.waits,
            wait_seconds=side.wait_ns / 1e9,
            lost_wakeups=side.lost,
        )

    def close(self) -> None:
        """See the contract."""
        if not self.closed:
            self.closed = True
            self._channel.leave(self._slot, CLOSED)
            self._side.rouse()


class LocalSender(_End, Generic[M]):
    """Sends the messages of one union; see `mailbox.Sender`."""

    def __init__(self, handle: LocalHandle, union: Any, epoch: int = 1) -> None:
        self._codec: Codec[M] = Codec(union)
        super().__init__(handle, self._codec.fingerprint, None, epoch)
        self._turn = asyncio.Lock()
        self._sending = 0  # sends that have begun; the lock alone is free for a moment between two of them
        self._wanted = 0  # bytes of the message that waits for room

    @property
    def largest_nowait(self) -> int:
        """See the contract."""
        return self._channel.capacity // 2 - RECORD_BYTES

    def _encode(self, message: M) -> tuple[Parts, int]:
        """The parts that cross, copied, and the bytes they would take in a ring."""
        parts = [self._codec.encode(message), *map(bytes, self._codec.take_attachments())]
        length = sum(map(len, frame.join(parts))) if parts[1:] else len(parts[0])
        if length > MAX_MESSAGE:
            raise MessageTooLarge(f"mailbox {self.name}: a message of {length} bytes; at most {MAX_MESSAGE} can cross")
        return parts, record_size(length)

    def send_nowait(self, message: M) -> None:
        """See the contract."""
        parts, size = self._encode(message)
        self._check_open()
        if self._sending or size > record_size(self.largest_nowait):
            raise WouldBlock(f"mailbox {self.name}: needs to wait")
        if not self._try_put(parts, size):
            self._wanted = size  # whoever waits for this end next waits for this message's room
            raise WouldBlock(f"mailbox {self.name}: full")

    async def send(self, message: M) -> None:
        """See the contract."""
        parts, size = self._encode(message)
        self._sending += 1
        try:
            async with self._turn:
                while not self._try_put(parts, size):
                    self._wanted = size
                    await wait_any([self])
        finally:
            self._sending -= 1

    def _try_put(self, parts: Parts, size: int) -> bool:
        self._check_open()
        if not self._has_room(size):
            return False
        self._side.messages += 1
        self._side.position += size
        for reader in self._channel.readers:
            if reader.state in (FREE, ATTACHED):
                reader.queue.append((parts, size))
                reader.used += size
                reader.rouse()
        return True

    def _has_room(self, size: int) -> bool:
        """A message that no ring of this capacity could hold goes alone."""
        used = self._channel.used()
        return used + size <= self._channel.capacity or not used

    def ready(self) -> bool:
        """Whether the message that waits has room, or never will."""
        try:
            return self.closed or self._has_room(self._wanted)
        except Broken:
            return True


class LocalReceiver(_End, Generic[M]):
    """Receives the messages of one union; see `mailbox.Receiver`."""

    _side: _Reader

    def __init__(self, handle: LocalHandle, union: Any, slot: int = 0, epoch: int = 1) -> None:
        self._codec: Codec[M] = Codec(union)
        before = handle.channel.readers[slot].state
        super().__init__(handle, self._codec.fingerprint, slot, epoch)
        if before != FREE and len(self._channel.readers) > 1:  # as in a ring: the others have gone on
            self._side.queue.clear()
            self._side.used = 0

    def receive_nowait(self) -> M:
        """See the contract."""
        self._check_open()
        reader = self._side
        if not reader.queue:
            self._check_writer()
            raise WouldBlock(f"mailbox {self.name}: empty")
        parts, size = reader.queue[0]
        try:
            message = self._codec.decode_parts([memoryview(part) for part in parts])
        except msgspec.DecodeError as error:
            raise Broken(f"mailbox {self.name}: a record does not decode: {error}") from None
        del reader.queue[0]
        reader.used -= size
        reader.messages += 1
        reader.position += size
        self._channel.writer.rouse()
        return message

    def receive_many_nowait(self, limit: int) -> list[M]:
        """See the contract."""
        messages = [self.receive_nowait()]
        with suppress(WouldBlock, EndOfStream, Broken):  # met again by the next call
            while len(messages) < limit:
                messages.append(self.receive_nowait())
        return messages

    def _check_writer(self) -> None:
        """Raise when nothing more will come."""
        state = self._channel.writer.state
        if state == GONE:
            raise PeerGone(f"mailbox {self.name}: its writer died")
        if state == CLOSED:
            raise EndOfStream(f"mailbox {self.name}: its writer closed it")

    async def receive(self) -> M:
        """See the contract."""
        while True:
            try:
                return self.receive_nowait()
            except WouldBlock:
                await wait_any([self])

    def ready(self) -> bool:
        """Whether `receive_nowait` would not raise WouldBlock."""
        return self.closed or bool(self._side.queue) or self._channel.writer.state in (CLOSED, GONE)
