"""A bounded byte ring with one writer and one or more readers, each of which gets every message.

Nothing here waits: the ends answer at once, and mailboxes park on top of them. See layout.py for the bytes and atomics.py for
why the order of accesses holds.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from .atomics import fence, load, publish, words_of
from .doorbell import create_doorbell, ring_doorbell
from .errors import Broken, Closed, EndOfStream, MessageTooLarge, SchemaMismatch
from .layout import (
    ATTACHED,
    CLOSED,
    DATA,
    DISCARD,
    FRAGMENT,
    FREE,
    GONE,
    LAST_FRAGMENT,
    MAGIC,
    PAD,
    PAGE,
    RECORD,
    W_CAPACITY,
    W_FINGERPRINT,
    W_HEAD,
    W_MAGIC,
    W_READERS,
    W_WRITER,
    W_WRITER_EPOCH,
    W_WRITER_PARKED,
    data_offset,
    record_size,
    w_reader,
    w_reader_epoch,
    w_reader_parked,
    w_tail,
)
from .segment import create_segment, map_segment

MAX_MESSAGE = 64 << 20  # bytes of one encoded message
_SEQUENCE = 0xFFFF_FFFF


class RingHandle(msgspec.Struct, frozen=True):
    """Descriptors of a ring, and the name used in errors and logs. An end owns the handle it attaches with."""

    name: str
    memory: int
    space_bell: int  # rung for the writer
    data_bells: list[int]  # rung for the reader in that slot

    def descriptors(self) -> list[int]:
        """Every descriptor of the ring."""
        return [self.memory, self.space_bell, *self.data_bells]

    def duplicate(self) -> "RingHandle":
        """The same ring under new descriptors of this process."""
        memory, space_bell, *data_bells = _open_all([partial(os.dup, fd) for fd in self.descriptors()])
        return RingHandle(self.name, memory, space_bell, data_bells)

    def close(self) -> None:
        """Close the descriptors. Mappings stay."""
        for fd in self.descriptors():
            os.close(fd)


def _open_all(makers: Sequence[Callable[[], int]]) -> list[int]:
    """A descriptor from each, or none at all."""
    made: list[int] = []
    try:
        made += (make() for make in makers)
    except OSError:
        for fd in made:
            os.close(fd)
        raise
    return made


def create_ring(name: str, capacity: int, fingerprint: int, readers: int = 1) -> RingHandle:
    """Make an empty ring. `capacity`, in bytes, is a power of two of at least one page; `fingerprint` that of the messages."""
    assert capacity >= PAGE, capacity
    assert capacity & (capacity - 1) == 0, capacity
    offset = data_offset(readers)
    makers: list[Callable[[], int]] = [partial(create_segment, name, offset + capacity)]
    segment, space_bell, *data_bells = _open_all(makers + [create_doorbell] * (1 + readers))
    handle = RingHandle(name, segment, space_bell, data_bells)
    try:
        memory = map_segment(handle.memory)
    except OSError:
        handle.close()
        raise
    words = words_of(memory, offset)
    words[W_CAPACITY], words[W_READERS], words[W_FINGERPRINT] = capacity, readers, fingerprint
    publish(words, W_MAGIC, MAGIC)
    words.release()
    memory.close()
    return handle


class _End:
    """What both ends have: the mapping, checked against the handle and the messages."""

    def __init__(self, handle: RingHandle, fingerprint: int) -> None:
        self.name = handle.name
        self._memory = map_segment(handle.memory)
        offset = data_offset(len(handle.data_bells))
        self._words = words_of(self._memory, offset)
        if load(self._words, W_MAGIC) != MAGIC:
            raise SchemaMismatch(f"mailbox {self.name}: the memory is not a ring of this version")
        if self._words[W_FINGERPRINT] != fingerprint:
            raise SchemaMismatch(
                f"mailbox {self.name}: made for messages {self._words[W_FINGERPRINT]:#x}, this side speaks {fingerprint:#x}"
            )
        self.capacity: int = self._words[W_CAPACITY]
        self._mask = self.capacity - 1
        self._readers = len(handle.data_bells)
        self._data = memoryview(self._memory)[offset : offset + self.capacity]
        self.closed = False

    def _claim(self, state: int, epoch: int, epoch_word: int, side: str) -> None:
        """Take a side of the ring, or refuse: two writers or two readers in one slot would corrupt it."""
        if load(self._words, state) == ATTACHED:
            raise Broken(f"mailbox {self.name}: its {side} is attached already (epoch {self._words[epoch_word]})")
        self._words[epoch_word] = epoch
        publish(self._words, state, ATTACHED)

    def _detach(self, state: int, words_state: int = CLOSED) -> None:
        publish(self._words, state, words_state)
        fence()
        self.closed = True

    def unmap(self) -> None:
        """Give the mapping back. The end must be closed."""
        self._data.release()
        self._words.release()
        self._memory.close()


class RingWriter(_End):
    """The writing end. At most one is attached; a second one raises Broken."""

    def __init__(self, handle: RingHandle, fingerprint: int, epoch: int = 1) -> None:
        super().__init__(handle, fingerprint)
        self._claim(W_WRITER, epoch, W_WRITER_EPOCH, "writer")
        self._epoch = epoch
        self._bells = handle.data_bells
        self._head = load(self._words, W_HEAD)
        self._limit = 0  # HEAD may grow up to here without looking at the readers again
        self._sequence = 0
        self.max_record = self.capacity // 2 - RECORD.size  # fits whatever the position, in an empty ring

    def try_write(self, payload: bytes | memoryview, kind: int = DATA) -> bool:
        """Publish one record, or return False when there is no room. Raises Broken when every reader is gone."""
        if self.closed:
            raise Closed(f"mailbox {self.name}: its writer was closed")
        size = record_size(len(payload))
        at = self._head & self._mask
        rest = self.capacity - at
        total = size if size <= rest else rest + size
        if self._head + total > self._limit and not self._has_room(total):
            return False
        if size > rest:
            self._put(at, rest - RECORD.size, PAD)
            at = 0
        self._put(at, len(payload), kind)
        self._data[at + RECORD.size : at + RECORD.size + len(payload)] = payload
        self._head += total
        publish(self._words, W_HEAD, self._head)  # pairs with the load of HEAD in RingReader.peek
        self._wake_readers()
        return True

    def has_room_for(self, length: int) -> bool:
        """Whether a record with a payload of this many bytes could be written now."""
        size = record_size(length)
        rest = self.capacity - (self._head & self._mask)
        return self._has_room(size if size <= rest else rest + size)

    def _put(self, at: int, length: int, kind: int) -> None:
        RECORD.pack_into(self._data, at, length, kind, 0, self._epoch & _SEQUENCE, self._sequence)
        self._sequence = (self._sequence + 1) & _SEQUENCE

    def _has_room(self, total: int) -> bool:
        words = self._words
        tails = [load(words, w_tail(s)) for s in range(self._readers) if load(words, w_reader(s)) != GONE]
        if not tails:
            raise Broken(f"mailbox {self.name}: no reader is left")
        self._limit = min(tails) + self.capacity  # pairs with the publish of TAIL in RingReader.advance
        return self._head + total <= self._limit

    def _wake_readers(self) -> None:
        fence()  # HEAD before the parked words: pairs with the fence of a parking reader
        for slot, bell in enumerate(self._bells):
            if self._words[w_reader_parked(slot)]:
                ring_doorbell(bell)

    def park(self) -> None:
        """Announce that the writer waits for room. The caller fences, tries once more, then waits for its bell."""
        if self.closed:
            raise Closed(f"mailbox {self.name}: its writer was closed")
        self._words[W_WRITER_PARKED] = 1

    def unpark(self) -> None:
        """The writer is awake."""
        if not self.closed:
            self._words[W_WRITER_PARKED] = 0

    def check_length(self, length: int) -> None:
        """Raise MessageTooLarge for a message nobody could receive."""
        if length > MAX_MESSAGE:
            raise MessageTooLarge(f"mailbox {self.name}: a message of {length} bytes; at most {MAX_MESSAGE} can cross")

    def close(self) -> None:
        """End the stream: readers get what was published, then EndOfStream."""
        if not self.closed:
            self._detach(W_WRITER)
            for bell in self._bells:
                ring_doorbell(bell)


class RingReader(_End):
    """The reading end in one slot. At most one is attached to a slot; a second one raises Broken."""

    def __init__(self, handle: RingHandle, fingerprint: int, slot: int = 0, epoch: int = 1) -> None:
        super().__init__(handle, fingerprint)
        self._slot = slot
        self._claim(w_reader(slot), epoch, w_reader_epoch(slot), f"reader {slot}")
        self._bell = handle.space_bell
        self._tail = load(self._words, w_tail(slot))
        self._next = self._tail  # TAIL after the record that peek shows
        self._epoch = -1  # of the writer; none seen yet
        self._due = 0  # sequence number of the record at TAIL
        self._parts: bytearray | None = None  # a fragmented message so far
        self._joined = -1  # TAIL of the fragment added to it last

    def peek(self) -> memoryview | bytearray | None:
        """The next message, valid until `advance`; None when nothing is published.

        Raises EndOfStream or Broken when nothing more will come, and Broken for a corrupt record.
        """
        if self.closed:
            raise Closed(f"mailbox {self.name}: its reader was closed")
        while True:
            head = load(self._words, W_HEAD)  # pairs with the publish of HEAD in RingWriter.try_write
            if self._tail == head:
                if self._writer_may_write():
                    return None
                self._end()
                continue
            # No view of the memory may stay in this frame: it would live on in the traceback of an error raised here.
            payload, kind = self._record(head)
            if kind == DATA:
                return self._data[payload]
            if kind in (FRAGMENT, LAST_FRAGMENT):
                if self._parts is None:
                    self._parts = bytearray()
                if self._joined != self._tail:
                    self._parts += self._data[payload]
                    self._joined = self._tail
                if len(self._parts) > MAX_MESSAGE:
                    raise Broken(f"mailbox {self.name}: a fragmented message passes {MAX_MESSAGE} bytes")
                if kind == LAST_FRAGMENT:
                    return self._parts
            elif kind == DISCARD:
                self._parts = None
            self.advance()

    def advance(self) -> None:
        """Release what peek showed, so that the writer may use the room."""
        if self._parts is not None and self._at_last_fragment():
            self._parts = None
        self._tail = self._next
        self._due = (self._due + 1) & _SEQUENCE
        publish(self._words, w_tail(self._slot), self._tail)  # pairs with the load of TAIL in RingWriter._has_room
        fence()  # TAIL before the writer's parked word: pairs with the fence of a parking writer
        if self._words[W_WRITER_PARKED]:
            ring_doorbell(self._bell)

    def _at_last_fragment(self) -> bool:
        return bool(RECORD.unpack_from(self._data, self._tail & self._mask)[1] == LAST_FRAGMENT)

    def _record(self, head: int) -> tuple[slice, int]:
        """Check the record at TAIL; returns the place of its payload and its kind, and sets where the next one starts."""
        at = self._tail & self._mask
        length, kind, _, epoch, sequence = RECORD.unpack_from(self._data, at)
        if epoch != self._epoch:  # a new writer numbers from 0; a new reader may meet an old writer at any number
            self._due = sequence if self._epoch < 0 else 0
            self._epoch, self._parts = epoch, None
        room = min(self.capacity - at, head - self._tail)
        if sequence != self._due or not DATA <= kind <= DISCARD or record_size(length) > room:
            raise Broken(
                f"mailbox {self.name}: corrupt record at {self._tail}: kind {kind}, {length} bytes, "
                f"sequence {sequence} where {self._due} was due"
            )
        self._next = self._tail + record_size(length)
        return slice(at + RECORD.size, at + RECORD.size + length), kind

    def _writer_may_write(self) -> bool:
        return load(self._words, W_WRITER) in (FREE, ATTACHED)

    def _end(self) -> None:
        """The writer has left: raise, unless it had published something just before."""
        if self._tail != load(self._words, W_HEAD):
            return
        if load(self._words, W_WRITER) == GONE:
            raise Broken(f"mailbox {self.name}: its writer died")
        raise EndOfStream(f"mailbox {self.name}: its writer closed it")

    def readable(self) -> bool:
        """Whether peek would return a message or raise, rather than return None."""
        return self._tail != load(self._words, W_HEAD) or not self._writer_may_write()

    def park(self) -> None:
        """Announce that the reader waits. The caller fences, looks once more, then waits for its bell."""
        if self.closed:
            raise Closed(f"mailbox {self.name}: its reader was closed")
        self._words[w_reader_parked(self._slot)] = 1

    def unpark(self) -> None:
        """The reader is awake."""
        if not self.closed:
            self._words[w_reader_parked(self._slot)] = 0

    def close(self) -> None:
        """Leave: the writer no longer waits for this slot."""
        if not self.closed:
            self._detach(w_reader(self._slot), GONE)
            ring_doorbell(self._bell)


def mark_gone(handle: RingHandle, *, writer: bool, slot: int = 0) -> None:
    """Record that a side's process was reaped, and wake the other side. Only the supervisor may call it."""
    memory = map_segment(handle.memory)
    words = words_of(memory, data_offset(len(handle.data_bells)))
    state = W_WRITER if writer else w_reader(slot)
    if words[state] == ATTACHED:
        publish(words, state, GONE)
        fence()
        for bell in handle.data_bells if writer else [handle.space_bell]:
            ring_doorbell(bell)
    words.release()
    memory.close()
