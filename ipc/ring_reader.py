"""The reading end of a ring, in one slot. It never waits."""

import zlib
from collections.abc import Callable
from typing import TypeVar

import msgspec

from .atomics import fence, load, publish, publish_fenced
from .doorbell import ring_doorbell
from .errors import Broken, Closed, EndOfStream, PeerGone
from .layout import (
    ATTACHED,
    ATTACHMENTS_SHIFT,
    CHECKED,
    CHECKSUM,
    DATA,
    DISCARD,
    FIRST_FRAGMENT,
    FRAGMENT,
    FREE,
    GONE,
    KIND_MASK,
    LAST_FRAGMENT,
    RECORD,
    RECORD_BYTES,
    SEQUENCE_MASK,
    W_HEAD,
    W_WRITER,
    W_WRITER_PARKED,
    record_size,
    w_reader,
    w_reader_counters,
    w_reader_epoch,
    w_reader_parked,
    w_tail,
)
from .ring import MAX_MESSAGE, RingEnd, RingHandle

M = TypeVar("M")

_unpack_record = RECORD.unpack_from


class RingReader(RingEnd):
    """The reading end in one slot. At most one is attached to a slot; a second one raises Broken.

    The successor of a reader that left goes on behind the last message that one released. Where there are other readers, for
    whom the writer went on meanwhile, it begins with what is published after it has attached.
    """

    def __init__(self, handle: RingHandle, fingerprint: int, slot: int = 0, epoch: int = 1) -> None:
        super().__init__(handle, fingerprint, counters=w_reader_counters(slot), parked=w_reader_parked(slot))
        before = self._claim(w_reader(slot), epoch, w_reader_epoch(slot), f"reader {slot}")
        if before != FREE and self._readers > 1:
            fence()  # from here on the writer minds this slot; what it may write without a look ends within a lap of HEAD
            publish(self._words, w_tail(slot), load(self._words, W_HEAD))
        self._slot = slot
        self._bell = handle.space_bell
        self._rung = 0  # the wait of the writer that the bell was rung for last
        self._w_tail, self._w_messages = w_tail(slot), w_reader_counters(slot)
        self._tail = load(self._words, self._w_tail)
        self._head = self._tail  # as far as HEAD is known to be
        self._next = self._tail  # TAIL after the record that peek shows
        self._epoch = -1  # of the writer; none seen yet
        self._due = 0  # sequence number of the record at TAIL
        self._parts: bytearray | None = None  # a fragmented message so far
        self._midway = True  # the first record may belong to a message whose beginning a predecessor took
        self._joined = -1  # TAIL of the fragment added to it last
        self.attachments = 0  # of the message that peek shows

    def peek(self) -> memoryview | None:
        """The next message, valid until `advance`, unless it is a view of a bytearray, which then belongs to the caller.

        None when nothing is published. Raises EndOfStream or Broken when nothing more will come, and Broken for a corrupt
        record. The common case stands here in one piece, since a call costs as much as the work.
        """
        tail = self._tail
        if tail == self._head:
            if self.closed:
                raise Closed(f"mailbox {self.name}: its reader was closed")
            self._head = load(self._words, W_HEAD)  # order: HEAD, side B: what lies before it is complete
            if tail == self._head:
                return self._peek_slowly()
        at = tail & self._mask
        length, kind, epoch, sequence = _unpack_record(self._data, at)
        start = at + RECORD_BYTES
        end = start + length
        following = tail + ((length + 31) & -16)  # record_size
        if kind != DATA or sequence != self._due or epoch != self._epoch or following > self._head or end > self.capacity:
            return self._peek_slowly()
        self._next = following
        self.attachments = 0
        return self._data[start:end]

    def _peek_slowly(self) -> memoryview | None:
        if self.closed:
            raise Closed(f"mailbox {self.name}: its reader was closed")
        while True:
            if self._tail == self._head:
                self._head = load(self._words, W_HEAD)  # order: HEAD, side B: as in peek
            if self._tail == self._head:
                if self._writer_may_write():
                    return None
                self._end()
                continue
            # No view of the memory may stay in this frame: it would live on in the traceback of an error raised here.
            payload, kind = self._record()
            self.attachments = kind >> ATTACHMENTS_SHIFT
            kind &= KIND_MASK
            if kind == DATA:
                self._midway = False
                return self._data[payload]
            if kind in (FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT):
                parts = self._join(payload, first=kind == FIRST_FRAGMENT)
                if parts is not None and kind == LAST_FRAGMENT:
                    return memoryview(parts)
            elif kind == DISCARD:
                self._parts = None
            self._release()

    def _join(self, payload: slice, *, first: bool) -> bytearray | None:
        """The fragments up to the one at TAIL; None for the rest of a message whose beginning a predecessor took."""
        if self._joined == self._tail:
            return self._parts
        if first:
            self._parts, self._midway = bytearray(), False
        if self._parts is None:
            if self._midway:
                return None
            raise Broken(f"mailbox {self.name}: corrupt record at {self._tail}: a fragment without a beginning")
        self._parts += self._data[payload]
        self._joined = self._tail
        if len(self._parts) > MAX_MESSAGE:
            raise Broken(f"mailbox {self.name}: a fragmented message passes {MAX_MESSAGE} bytes")
        return self._parts

    def advance(self) -> None:
        """Release the message that peek showed, so that the writer may use the room."""
        if self._parts is not None and self._joined == self._tail:
            self._parts = None
        words = self._words
        self._messages = messages = self._messages + 1
        words[self._w_messages] = messages
        self._tail = tail = self._next
        self._due = (self._due + 1) & SEQUENCE_MASK
        # order: TAIL, side A: reading is over before the room is given back
        publish_fenced(words, self._w_tail, tail)  # order: wake, side A: TAIL before the writer's parked word
        if words[W_WRITER_PARKED] & 1:
            self._ring()

    def take(self, decode: Callable[[memoryview], M], limit: int) -> list[M]:
        """Up to `limit` messages in plain records, decoded, and released together: one look at HEAD, one fence for all.

        Stops before anything else, be it the end of a lap or what does not decode, and leaves that to `peek`.
        """
        taken: list[M] = []
        data, mask, epoch, tail, due = self._data, self._mask, self._epoch, self._tail, self._due
        if not self.closed:
            self._head = load(self._words, W_HEAD)  # order: HEAD, side B: as in peek
        while tail != self._head and len(taken) < limit:
            at = tail & mask
            length, kind, its_epoch, sequence = _unpack_record(data, at)
            start = at + RECORD_BYTES
            end = start + length
            following = tail + ((length + 31) & -16)  # record_size
            if kind != DATA or sequence != due or its_epoch != epoch or following > self._head or end > self.capacity:
                break
            view = data[start:end]
            try:
                taken.append(decode(view))
            except msgspec.DecodeError:  # met again, and told, when it comes first
                view.release()
                break
            tail = following
            due = (due + 1) & SEQUENCE_MASK
        if taken:
            self._next, self._due = tail, (due - 1) & SEQUENCE_MASK
            self._messages += len(taken) - 1
            self.advance()
        return taken

    def _release(self) -> None:
        """Release a record at TAIL that is no message, or not the last of one."""
        self._tail = self._next
        self._due = (self._due + 1) & SEQUENCE_MASK
        words = self._words
        # order: TAIL, side A: as in advance
        publish_fenced(words, self._w_tail, self._tail)  # order: wake, side A: as in advance
        if words[W_WRITER_PARKED] & 1:
            self._ring()

    def _ring(self) -> None:
        """Wake the writer, unless that was done already for this wait of it."""
        wait = self._words[W_WRITER_PARKED]
        if self._rung != wait:
            self._rung = wait
            ring_doorbell(self._bell)

    def _record(self) -> tuple[slice, int]:
        """Check the record at TAIL; returns the place of its payload and its kind word, and sets where the next one starts."""
        at = self._tail & self._mask
        length, kind, epoch, sequence = _unpack_record(self._data, at)
        if epoch != self._epoch:  # a new writer numbers from 0; a new reader may meet an old writer at any number
            self._due = sequence if self._epoch < 0 else 0
            self._epoch, self._parts = epoch, None
        size = record_size(length + (CHECKSUM.size if kind & CHECKED else 0))
        room = min(self.capacity - at, self._head - self._tail)
        end = at + RECORD_BYTES + length
        if sequence != self._due or not DATA <= kind & KIND_MASK <= DISCARD or size > room:
            raise Broken(
                f"mailbox {self.name}: corrupt record at {self._tail}: kind {kind:#x}, {length} bytes, "
                f"sequence {sequence} where {self._due} was due"
            )
        if kind & CHECKED and CHECKSUM.unpack_from(self._data, end)[0] != zlib.crc32(self._data[at:end]):
            raise Broken(f"mailbox {self.name}: corrupt record at {self._tail}: its checksum does not fit")
        self._next = self._tail + size
        return slice(at + RECORD_BYTES, end), kind

    def _writer_may_write(self) -> bool:
        return load(self._words, W_WRITER) in (FREE, ATTACHED)

    def _end(self) -> None:
        """The writer has left: raise, unless it had published something just before."""
        if self._tail != load(self._words, W_HEAD):
            return
        if load(self._words, W_WRITER) == GONE:
            raise PeerGone(f"mailbox {self.name}: its writer died")
        raise EndOfStream(f"mailbox {self.name}: its writer closed it")

    @property
    def position(self) -> int:
        """See RingEnd."""
        return self._tail

    def readable(self) -> bool:
        """Whether peek would return a message or raise, rather than return None."""
        return self.closed or self._tail != load(self._words, W_HEAD) or not self._writer_may_write()

    def close(self) -> None:
        """Leave: the writer no longer waits for this slot."""
        if not self.closed:
            self._head = self._tail  # so that a later look looks again, and finds it closed
            self._detach(w_reader(self._slot))
            ring_doorbell(self._bell)
