"""A ring as an onlooker sees it: mapped for reading only, and nobody notices."""

import msgspec

from .atomics import load, words_of
from .errors import SchemaMismatch
from .layout import (
    LOST,
    MAGIC,
    MESSAGES,
    W_CAPACITY,
    W_HEAD,
    W_MAGIC,
    W_READERS,
    W_WRITER,
    W_WRITER_COUNTERS,
    W_WRITER_EPOCH,
    W_WRITER_PARKED,
    WAIT_NS,
    WAITS,
    data_offset,
    w_reader,
    w_reader_counters,
    w_reader_epoch,
    w_reader_parked,
    w_tail,
)
from .segment import map_segment

STATES = ("free", "attached", "closed", "gone")


class SideReading(msgspec.Struct, frozen=True):
    """One side of a ring at one moment."""

    state: str  # one of STATES
    epoch: int
    parked: bool
    position: int  # bytes published, or released
    messages: int
    waits: int
    wait_seconds: float
    lost_wakeups: int


class RingReading(msgspec.Struct, frozen=True):
    """A ring at one moment. Its numbers are read one after the other, so they may differ by what happens meanwhile."""

    capacity: int
    used: int  # bytes that the slowest attached reader has not released
    writer: SideReading
    readers: list[SideReading]


class RingView:
    """Raises SchemaMismatch when the memory is not a ring of this version."""

    def __init__(self, memory: int) -> None:
        """Map the segment behind a descriptor, which stays the caller's."""
        self._memory = map_segment(memory, writable=False)
        self._words = words_of(self._memory, min(len(self._memory), data_offset(0)) & -8)
        if len(self._words) <= W_READERS or load(self._words, W_MAGIC) != MAGIC:
            self.close()
            raise SchemaMismatch("the memory is not a ring of this version")
        self._slots = range(self._words[W_READERS])
        self._words.release()
        self._words = words_of(self._memory, data_offset(len(self._slots)))

    def read(self) -> RingReading:
        """The ring now."""
        words = self._words
        readers = [
            self._side(w_reader(slot), w_reader_epoch(slot), w_reader_parked(slot), w_tail(slot), w_reader_counters(slot))
            for slot in self._slots
        ]
        writer = self._side(W_WRITER, W_WRITER_EPOCH, W_WRITER_PARKED, W_HEAD, W_WRITER_COUNTERS)
        held = [writer.position - reader.position for reader in readers if reader.state in ("free", "attached")]
        return RingReading(words[W_CAPACITY], max(held, default=0), writer, readers)

    def _side(self, state: int, epoch: int, parked: int, position: int, counters: int) -> SideReading:
        words = self._words
        return SideReading(
            state=STATES[words[state]],
            epoch=words[epoch],
            parked=bool(words[parked] & 1),
            position=load(words, position),
            messages=words[counters + MESSAGES],
            waits=words[counters + WAITS],
            wait_seconds=words[counters + WAIT_NS] / 1e9,
            lost_wakeups=words[counters + LOST],
        )

    def close(self) -> None:
        """Give the mapping back."""
        self._words.release()
        self._memory.close()
