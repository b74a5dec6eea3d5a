"""Mailboxes between processes: the two ends over a ring in shared memory."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from . import frame
from .codec import Codec
from .doorbell import Doorbell
from .errors import Broken, MessageTooLarge, WouldBlock
from .layout import DATA, DISCARD, FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT
from .mailbox import Statistics
from .parking import wait_any
from .ring import MAX_MESSAGE, RingHandle
from .ring_reader import RingReader
from .ring_writer import RingWriter

M = TypeVar("M")
R = TypeVar("R", RingWriter, RingReader)
Pieces = Sequence[bytes | memoryview]


def _nobody() -> None:
    """Called when a bell rings that nobody waits for."""


class _End(Generic[R]):
    """What both ends share: the handle, which they own, the bell, parking and closing."""

    def __init__(self, handle: RingHandle, bell: int, attach: Callable[[], R]) -> None:
        self._handle = handle
        try:
            self._ring: R = attach()
        except BaseException:
            handle.close()
            raise
        self._wake: Callable[[], None] = _nobody
        self._bell = Doorbell(bell, lambda: self._wake())

    @property
    def name(self) -> str:
        """Name of the mailbox, for errors and logs."""
        return self._ring.name

    def arm(self, wake: Callable[[], None]) -> None:
        """See Parkable."""
        if self._wake is not _nobody:
            raise RuntimeError(f"mailbox {self.name}: two tasks wait at one end")
        self._ring.park()
        self._wake = wake
        self._bell.listen()

    def disarm(self, waited: int) -> None:
        """See Parkable."""
        self._ring.unpark()
        self._wake = _nobody
        if waited:
            self._ring.count_wait(waited)

    def count_lost_wakeup(self) -> None:
        """See Parkable."""
        self._ring.count_lost_wakeup()

    def statistics(self) -> Statistics:
        """See the contract."""
        messages, waits, nanoseconds, lost = self._ring.counters()
        return Statistics(
            messages=messages,
            bytes=self._ring.position,
            waits=waits,
            wait_seconds=nanoseconds / 1e9,
            lost_wakeups=lost,
        )

    def close(self) -> None:
        """See the contract. Gives the memory and the handle back."""
        if not self._ring.closed:
            self._ring.close()
            self._bell.close()
            self._ring.unmap()
            self._handle.close()
            self._wake()


class SharedSender(_End[RingWriter], Generic[M]):
    """Sends the messages of one union; see `mailbox.Sender`. Owns its end of the ring and the handle."""

    def __init__(self, handle: RingHandle, union: Any, epoch: int = 1, *, checked: bool = False) -> None:
        """Attach as the only writer. Raises SchemaMismatch, or Broken when a writer is attached; then the handle is closed."""
        self._codec: Codec[M] = Codec(union)
        super().__init__(handle, handle.space_bell, lambda: RingWriter(handle, self._codec.fingerprint, epoch, checked=checked))
        self._max_record = self._ring.max_record
        self._turn = asyncio.Lock()
        self._sending = 0  # sends that have begun; the lock alone is free for a moment between two of them
        self._wanted = 0  # payload bytes of the record that waits for room
        self._discard = False  # a fragmented message was cancelled midway; tell the reader before anything else

    @property
    def largest_nowait(self) -> int:
        """See the contract."""
        return self._max_record

    def send_nowait(self, message: M) -> None:
        """See the contract."""
        payload = self._codec.encode(message)
        if self._codec.attachments:
            self._send_pieces_nowait(*self._framed(payload))
        elif self._sending or self._discard or len(payload) > self._max_record:
            self._send_pieces_nowait([payload], len(payload), 0)
        elif not self._ring.try_write(payload):
            self._full(len(payload))

    def _send_pieces_nowait(self, pieces: Pieces, length: int, attachments: int) -> None:
        self._check_length(length)
        if not self._ring.closed and (self._sending or length > self._max_record):
            raise WouldBlock(f"mailbox {self.name}: needs to wait")
        if self._discard:
            self._discard = not self._ring.try_write_pieces([], 0, DISCARD)
        if self._discard or not self._ring.try_write_pieces(pieces, length, DATA, attachments):
            self._full(length)

    def _full(self, length: int) -> None:
        self._wanted = length  # whoever waits for this end next waits for this message's room
        raise WouldBlock(f"mailbox {self.name}: full")

    def _check_length(self, length: int) -> None:
        if length > MAX_MESSAGE:
            raise MessageTooLarge(f"mailbox {self.name}: a message of {length} bytes; at most {MAX_MESSAGE} can cross")

    def _framed(self, payload: bytes) -> tuple[Pieces, int, int]:
        """What crosses for the message just encoded: pieces, their bytes in all, and the number of attachments."""
        attachments = self._codec.take_attachments()
        pieces: Pieces = frame.join([payload, *attachments]) if attachments else [payload]
        return pieces, sum(map(len, pieces)), len(attachments)

    async def send(self, message: M) -> None:
        """See the contract."""
        pieces, length, attachments = self._framed(self._codec.encode(message))
        self._check_length(length)
        self._sending += 1
        try:
            async with self._turn:
                await self._write_message(pieces, length, attachments)
        finally:
            self._sending -= 1

    async def _write_message(self, pieces: Pieces, length: int, attachments: int) -> None:
        if self._discard:
            await self._write([], 0, DISCARD)
            self._discard = False
        if length <= self._max_record:
            await self._write(pieces, length, DATA, attachments)
        else:
            await self._write_fragments(frame.cut(pieces, self._ring.capacity // 4), attachments)

    async def _write_fragments(self, portions: Sequence[Pieces], attachments: int) -> None:
        last = len(portions) - 1
        for index, portion in enumerate(portions):
            kind = FIRST_FRAGMENT if not index else LAST_FRAGMENT if index == last else FRAGMENT
            await self._write(portion, sum(map(len, portion)), kind, attachments)
            self._discard = index != last

    async def _write(self, pieces: Pieces, length: int, kind: int, attachments: int = 0) -> None:
        while not self._ring.try_write_pieces(pieces, length, kind, attachments):
            self._wanted = length
            await wait_any([self])

    def ready(self) -> bool:
        """Whether the record that waits has room, or never will."""
        try:
            return self._ring.has_room_for(self._wanted)
        except Broken:
            return True


class SharedReceiver(_End[RingReader], Generic[M]):
    """Receives the messages of one union; see `mailbox.Receiver`. Owns its end of the ring and the handle."""

    def __init__(self, handle: RingHandle, union: Any, slot: int = 0, epoch: int = 1) -> None:
        """Attach as the only reader of a slot. Raises SchemaMismatch, or Broken when it is taken; then the handle is closed."""
        self._codec: Codec[M] = Codec(union)
        self._decode = self._codec.decode
        bell = handle.data_bells[slot]
        super().__init__(handle, bell, lambda: RingReader(handle, self._codec.fingerprint, slot, epoch))

    def receive_nowait(self) -> M:
        """See the contract."""
        ring = self._ring
        view = ring.peek()
        if view is None:
            raise WouldBlock(f"mailbox {self.name}: empty")
        try:
            message = self._decode(view) if not ring.attachments else self._decode_frame(view)
        except (msgspec.DecodeError, frame.BadFrame) as error:
            view.release()  # the traceback keeps this frame, and a view would keep the memory from being given back
            raise Broken(f"mailbox {self.name}: a record does not decode: {error}") from None
        ring.advance()
        return message

    def receive_many_nowait(self, limit: int) -> list[M]:
        """See the contract."""
        return self._ring.take(self._decode, limit) or [self.receive_nowait()]

    def _decode_frame(self, view: memoryview) -> M:
        """The message of a frame. What it lies in becomes the receiver's own: a copy, unless it was joined from fragments."""
        if not isinstance(view.obj, bytearray):
            view = memoryview(bytes(view))
        return self._codec.decode_parts(frame.split(view, self._ring.attachments))

    async def receive(self) -> M:
        """See the contract."""
        while self._ring.peek() is None:
            await wait_any([self])
        return self.receive_nowait()

    def ready(self) -> bool:
        """Whether `receive_nowait` would not raise WouldBlock."""
        return self._ring.readable()
