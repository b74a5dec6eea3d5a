"""The ring against a model in plain Python: any mix of writes, reads and readers that leave."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ringpost.ipc.errors import EndOfStream
from ringpost.ipc.ring import create_ring
from ringpost.ipc.ring_reader import RingReader
from ringpost.ipc.ring_writer import RingWriter

CAPACITY, HEADER, ALIGN = 4096, 16, 16
LARGEST = CAPACITY // 2 - HEADER


class RingMachine(RuleBasedStateMachine):
    """Positions as the page on the layout describes them, computed once more and independently."""

    @initialize(readers=st.integers(1, 3))
    def make(self, readers: int) -> None:
        self.handle = create_ring("machine", CAPACITY, 7, readers)
        self.copies = [self.handle.duplicate() for _ in range(readers)]
        self.writer = RingWriter(self.handle, 7)
        self.readers = {slot: RingReader(self.copies[slot], 7, slot) for slot in range(readers)}
        self.records: list[tuple[int, bytes]] = []  # start, payload
        self.head = 0
        self.tails = dict.fromkeys(self.readers, 0)
        self.taken = dict.fromkeys(self.readers, 0)  # records

    def place(self, size: int) -> tuple[int, int]:
        """Start and end of the next record."""
        total = -(-(HEADER + size) // ALIGN) * ALIGN
        rest = CAPACITY - self.head % CAPACITY
        start = self.head if total <= rest else self.head + rest
        return start, start + total

    @rule(size=st.one_of(st.integers(0, LARGEST), st.integers(0, 40), st.integers(LARGEST - 40, LARGEST)))
    def write(self, size: int) -> None:
        payload = random.Random(len(self.records)).randbytes(size)
        start, end = self.place(size)
        fits = end - min(self.tails.values()) <= CAPACITY
        assert self.writer.has_room_for(size) == fits
        assert self.writer.try_write(payload) == fits
        if fits:
            self.records.append((start, payload))
            self.head = end

    @rule(size=st.integers(0, LARGEST))
    def fill(self, size: int) -> None:
        count = -1
        while len(self.records) > count:
            count = len(self.records)
            self.write(size)

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.readers)))
        while self.taken[slot] < len(self.records):
            self.check_next(slot, take=True)

    @rule(data=st.data(), take=st.booleans())
    def read(self, data: st.DataObject, take: bool) -> None:
        slot = data.draw(st.sampled_from(sorted(self.readers)))
        self.check_next(slot, take=take)

    def check_next(self, slot: int, *, take: bool) -> None:
        reader = self.readers[slot]
        waiting = self.taken[slot] < len(self.records)
        assert reader.readable() == waiting
        if not waiting:
            assert reader.peek() is None
            return
        start, payload = self.records[self.taken[slot]]
        for _ in range(2):
            view = reader.peek()
            assert view is not None
            assert bytes(view) == payload
            del view
        self.tails[slot] = start  # looking past the unused end of a lap releases it
        if take:
            reader.advance()
            self.taken[slot] += 1
            self.tails[slot] = start + -(-(HEADER + len(payload)) // ALIGN) * ALIGN

    @precondition(lambda self: len(self.readers) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.readers)))
        reader = self.readers.pop(slot)
        del self.tails[slot]
        reader.close()
        reader.unmap()

    def teardown(self) -> None:
        if not hasattr(self, "writer"):
            return
        self.writer.close()
        for slot, reader in self.readers.items():
            while self.taken[slot] < len(self.records):
                self.check_next(slot, take=True)
            try:
                assert reader.peek() is not None
                raise AssertionError("the stream has no end")
            except EndOfStream:
                reader.close()
                reader.unmap()
        self.writer.unmap()
        for handle in (self.handle, *self.copies):
            handle.close()


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
