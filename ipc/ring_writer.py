"""The writing end of a ring. It never waits."""

import zlib
from collections.abc import Sequence

from .atomics import load, publish_fenced
from .doorbell import ring_doorbell
from .errors import Closed, PeerGone
from .layout import (
    ATTACHMENTS_SHIFT,
    CHECKED,
    CHECKSUM,
    CLOSED,
    DATA,
    GONE,
    LAST_FRAGMENT,
    PAD,
    RECORD,
    RECORD_BYTES,
    SEQUENCE_MASK,
    W_HEAD,
    W_WRITER,
    W_WRITER_COUNTERS,
    W_WRITER_EPOCH,
    W_WRITER_PARKED,
    record_size,
    w_reader,
    w_reader_parked,
    w_tail,
)
from .ring import RingEnd, RingHandle

_pack_record = RECORD.pack_into


class RingWriter(RingEnd):
    """The writing end. At most one is attached; a second one raises Broken.

    With `checked`, each record carries a checksum, and the readers verify it: for debugging, at the price of speed.
    """

    def __init__(self, handle: RingHandle, fingerprint: int, epoch: int = 1, *, checked: bool = False) -> None:
        super().__init__(handle, fingerprint, counters=W_WRITER_COUNTERS, parked=W_WRITER_PARKED)
        self._claim(W_WRITER, epoch, W_WRITER_EPOCH, "writer")
        self._epoch = epoch & SEQUENCE_MASK
        self._bells = handle.data_bells
        self._parked = [w_reader_parked(slot) for slot in range(self._readers)]
        self._rung = [0] * self._readers  # the wait of each reader that the bell was rung for last
        self._head = load(self._words, W_HEAD)
        self._limit = 0  # HEAD may grow up to here without looking at the readers again
        self._sequence = 0
        self._checked = CHECKED if checked else 0
        self._trailer = CHECKSUM.size if checked else 0
        self._quick_end = 0 if checked else self.capacity  # of a record that `try_write` itself can place
        self.max_record = self.capacity // 2 - RECORD_BYTES - self._trailer  # fits whatever the position, in an empty ring

    def try_write(self, payload: bytes) -> bool:
        """Publish a whole message in one record, or return False when there is no room.

        Raises Broken when every reader is gone, Closed after `close`. The common case stands here in one piece, since a call
        costs as much as the work.
        """
        length = len(payload)
        at = self._head & self._mask
        start = at + RECORD_BYTES
        end = start + length
        head = self._head + ((length + 31) & -16)  # record_size
        if head > self._limit or end > self._quick_end:
            return self.try_write_pieces([payload], length, DATA)
        _pack_record(self._data, at, length, DATA, self._epoch, self._sequence)
        self._data[start:end] = payload
        self._sequence = (self._sequence + 1) & SEQUENCE_MASK
        self._head = head
        self._messages = messages = self._messages + 1
        words = self._words
        words[W_WRITER_COUNTERS] = messages
        # order: HEAD, side A: the record is complete before its position is shown
        publish_fenced(words, W_HEAD, head)  # order: wake, side A: HEAD before the parked words
        for parked in self._parked:
            if words[parked] & 1:
                self._ring(parked)
        return True

    def try_write_pieces(self, pieces: Sequence[bytes | memoryview], length: int, kind: int, attachments: int = 0) -> bool:
        """Publish one record whose payload of `length` bytes comes in pieces; as `try_write`."""
        if self.closed:
            raise Closed(f"mailbox {self.name}: its writer was closed")
        size = record_size(length + self._trailer)
        at = self._head & self._mask
        rest = self.capacity - at
        total = size if size <= rest else rest + size
        if self._head + total > self._limit and not self._has_room(total):
            return False
        if size > rest:
            self._put(at, (), rest - RECORD_BYTES, PAD)
            at = 0
        self._put(at, pieces, length, kind | self._checked | attachments << ATTACHMENTS_SHIFT)
        self._publish(self._head + total, 1 if kind in (DATA, LAST_FRAGMENT) else 0)
        return True

    def _put(self, at: int, pieces: Sequence[bytes | memoryview], length: int, kind: int) -> None:
        """Write a record without publishing it."""
        data = self._data
        _pack_record(data, at, length, kind, self._epoch, self._sequence)
        self._sequence = (self._sequence + 1) & SEQUENCE_MASK
        end = at + RECORD_BYTES
        for piece in pieces:
            start, end = end, end + len(piece)
            data[start:end] = piece
        if kind & CHECKED:
            CHECKSUM.pack_into(data, end, zlib.crc32(data[at:end]))

    def _publish(self, head: int, messages: int) -> None:
        """Show the readers everything up to `head`, and wake those that sleep."""
        self._head = head
        self._messages += messages
        words = self._words
        words[W_WRITER_COUNTERS] = self._messages
        # order: HEAD, side A: as in try_write
        publish_fenced(words, W_HEAD, head)  # order: wake, side A: as in try_write
        for parked in self._parked:
            if words[parked] & 1:
                self._ring(parked)

    def _ring(self, parked: int) -> None:
        """Wake the reader with this parked word, unless that was done already and it only has not run yet."""
        slot, wait = self._parked.index(parked), self._words[parked]
        if self._rung[slot] != wait:
            self._rung[slot] = wait
            ring_doorbell(self._bells[slot])

    @property
    def position(self) -> int:
        """See RingEnd."""
        return self._head

    def has_room_for(self, length: int) -> bool:
        """Whether a record with a payload of this many bytes could be written now, or a try would raise."""
        if self.closed:
            return True
        size = record_size(length + self._trailer)
        rest = self.capacity - (self._head & self._mask)
        return self._has_room(size if size <= rest else rest + size)

    def _has_room(self, total: int) -> bool:
        words = self._words
        # order: TAIL, side B: a record that was released is not read any more
        tails = [
            load(words, w_tail(slot)) for slot in range(self._readers) if load(words, w_reader(slot)) not in (GONE, CLOSED)
        ]
        if not tails:
            raise PeerGone(f"mailbox {self.name}: no reader is left")
        self._limit = min(tails) + self.capacity
        return self._head + total <= self._limit

    def close(self) -> None:
        """End the stream: readers get what was published, then EndOfStream."""
        if not self.closed:
            self._limit = 0  # so that a later write looks, and finds it closed
            self._detach(W_WRITER)
            for bell in self._bells:
                ring_doorbell(bell)
