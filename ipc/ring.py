"""A bounded byte ring with one writer and one or more readers, each of which gets every message: its making and its sides.

Nothing here waits: the ends in ring_writer.py and ring_reader.py answer at once, and mailboxes park on top of them. See
layout.py for the bytes and atomics.py for why the order of accesses holds.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from .atomics import Words, fence, load, publish, words_of
from .doorbell import create_doorbell, ring_doorbell
from .errors import Broken, Closed, SchemaMismatch
from .layout import (
    ATTACHED,
    CLOSED,
    FREE,
    GONE,
    LOST,
    MAGIC,
    MESSAGES,
    PAGE,
    W_CAPACITY,
    W_FINGERPRINT,
    W_MAGIC,
    W_READERS,
    W_WRITER,
    WAIT_NS,
    WAITS,
    data_offset,
    w_reader,
)
from .segment import create_segment, map_segment

MAX_MESSAGE = 64 << 20  # bytes of one encoded message


class RingHandle(msgspec.Struct, frozen=True, tag="ring"):
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

    def mark_gone(self, *, writer: bool, slot: int = 0) -> None:
        """Record that a side's process was reaped, and wake the other side. Only the supervisor may call it."""
        memory = map_segment(self.memory)
        words = words_of(memory, data_offset(len(self.data_bells)))
        state = W_WRITER if writer else w_reader(slot)
        if words[state] in (ATTACHED, FREE):
            publish(words, state, GONE)
            fence()  # the state before the parked words, which `ring_doorbell` need not look at: it rings anyway
            for bell in self.data_bells if writer else [self.space_bell]:
                ring_doorbell(bell)
        words.release()
        memory.close()

    def vacate(self, *, writer: bool, slot: int = 0) -> None:
        """Record that a side's process was reaped and will have a successor, for which the other side waits as if nothing
        had happened. Only the supervisor may call it.
        """
        memory = map_segment(self.memory)
        words = words_of(memory, data_offset(len(self.data_bells)))
        publish(words, W_WRITER if writer else w_reader(slot), FREE)
        words.release()
        memory.close()

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


class RingEnd:
    """What both ends have: the mapping, checked against the handle and the messages; a claimed side; its counters."""

    def __init__(self, handle: RingHandle, fingerprint: int, *, counters: int, parked: int) -> None:
        self.name = handle.name
        self._memory = map_segment(handle.memory)
        offset = data_offset(len(handle.data_bells))
        self._words: Words = words_of(self._memory, offset)
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
        self._counters = counters  # index of the first word
        self._messages: int = self._words[counters + MESSAGES]
        self._w_parked = parked
        self.closed = False

    def _claim(self, state: int, epoch: int, epoch_word: int, side: str) -> int:
        """Take a side of the ring, or refuse: two writers or two readers in one slot would corrupt it.

        Returns the state it was in.
        """
        before = load(self._words, state)
        if before == ATTACHED:
            raise Broken(f"mailbox {self.name}: its {side} is attached already (epoch {self._words[epoch_word]})")
        self._words[epoch_word] = epoch
        self.unpark()  # a predecessor may have died in its sleep
        publish(self._words, state, ATTACHED)
        return before

    def _detach(self, state: int) -> None:
        publish(self._words, state, CLOSED)
        fence()
        self.closed = True

    def park(self) -> None:
        """Announce a wait. The caller fences, looks once more, then waits for its bell. Raises Closed."""
        if self.closed:
            raise Closed(f"mailbox {self.name}: its end was closed")
        self._words[self._w_parked] = (self._words[self._w_parked] + 1) | 1  # order: wake, side B: a fence and a look follow

    def unpark(self) -> None:
        """The wait is over."""
        if not self.closed:
            self._words[self._w_parked] = (self._words[self._w_parked] + 1) & -2

    def count_wait(self, nanoseconds: int) -> None:
        """Add a wait to this side's counters."""
        if not self.closed:
            self._words[self._counters + WAITS] += 1
            self._words[self._counters + WAIT_NS] += nanoseconds

    def count_lost_wakeup(self) -> None:
        """Add a wait that only the backstop timer ended."""
        if not self.closed:
            self._words[self._counters + LOST] += 1

    @property
    def position(self) -> int:
        """Bytes that this side has published or released, headers included."""
        raise NotImplementedError

    def counters(self) -> tuple[int, int, int, int]:
        """Messages, waits, nanoseconds waited and lost wake-ups of this side. Raises Closed after `close`."""
        if self.closed:
            raise Closed(f"mailbox {self.name}: this end was closed")
        messages, waits, nanoseconds, lost = self._words[self._counters : self._counters + 4]
        return messages, waits, nanoseconds, lost

    def unmap(self) -> None:
        """Give the mapping back. The end must be closed."""
        self._data.release()
        self._words.release()
        self._memory.close()
