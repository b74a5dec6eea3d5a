"""What an onlooker finds of the messages that went through a ring: the last ones, in order, whatever happened to the ring."""

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mailboxes import Parcel, big, joined, make_ring, note, read_all, receive_all, write_all

from ringpost.ipc import frame, ring_history
from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.codec import fingerprint_of
from ringpost.ipc.errors import SchemaMismatch
from ringpost.ipc.layout import (
    DATA,
    DISCARD,
    FIRST_FRAGMENT,
    FRAGMENT,
    LAST_FRAGMENT,
    RECORD,
    W_CAPACITY,
    W_HEAD,
    W_READERS,
    W_WRITER,
    data_offset,
    record_size,
)
from ringpost.ipc.messages.outputs import OutputMessage, UtilityReply
from ringpost.ipc.messages.payload import Payload
from ringpost.ipc.ring import RingHandle
from ringpost.ipc.ring_history import PastMessage, remember
from ringpost.ipc.ring_reader import RingReader
from ringpost.ipc.ring_writer import RingWriter
from ringpost.ipc.segment import create_segment, map_segment
from ringpost.ipc.shared_mailbox import SharedSender

CAPACITY = 4096
UNION = fingerprint_of(OutputMessage)
pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def handle() -> Iterator[RingHandle]:
    handle = make_ring()
    yield handle
    handle.close()


def past(handle: RingHandle, limit: int = 1000, **options: int) -> list[PastMessage]:
    return remember(handle.memory, **options).messages(OutputMessage, limit)


class Sent(msgspec.Struct):
    """A message that the model has sent."""

    message: UtilityReply
    start: int
    epoch: int


class Model:
    """A ring, and what went through it."""

    def __init__(self, handle: RingHandle, *, checked: bool) -> None:
        self.handle, self.checked = handle, checked
        self.epoch, self.taken, self.overwritten = 1, 0, 0  # bytes published, or laid out by a writer that died
        self.sent: list[Sent] = []
        self.reader = RingReader(handle, UNION)
        self.writer = RingWriter(handle, UNION, self.epoch, checked=checked)

    def restart(self) -> None:
        """The writer dies where it is; another one takes its place."""
        self.handle.mark_gone(writer=True)
        self.writer.unmap()
        self.epoch += 1
        self.writer = RingWriter(self.handle, UNION, self.epoch, checked=self.checked)

    def payload(self, size: int) -> tuple[UtilityReply, bytes]:
        """A message whose text looks like headers of records, at all alignments."""
        number = len(self.sent)
        rest = random.Random(number).choices(["\0", "\1", "\2", "\20", "x"], k=size)
        message = UtilityReply(number, message="".join(rest))
        return message, msgspec.msgpack.encode(message)

    def write(self, payload: bytes, kind: int) -> bool:
        return self.writer.try_write_pieces([payload], len(payload), kind)

    def send(self, size: int) -> None:
        message, payload = self.payload(size)
        before = self.writer.position
        if self.write(payload, DATA):
            skipped = CAPACITY - before % CAPACITY
            start = before if self.writer.position - before <= skipped else before + skipped
            self.sent.append(Sent(message, start, self.epoch))

    def stream(self, count: int, size: int) -> None:
        """Send some of equal size to a reader that keeps up."""
        for _ in range(count):
            self.send(size)
            self.read(1)

    def send_in_fragments(self, size: int, finish: int) -> None:
        """Send what there is room for. With `finish` 0 the writer dies before the last fragment, with 1 it takes them back."""
        message, payload = self.payload(size)
        portions = [b"".join(portion) for portion in frame.cut([payload], max(1, len(payload) // 3))]
        starts: list[int] = []
        for index, portion in enumerate(portions):
            last = index == len(portions) - 1
            if (last and finish < 2) or not self.write(
                portion, FIRST_FRAGMENT if not index else LAST_FRAGMENT if last else FRAGMENT
            ):
                if not starts or (finish and self.write(b"", DISCARD)):
                    return
                self.restart()
                return
            starts.append(self.writer.position - record_size(len(portion) + 4 * self.checked))
        self.sent.append(Sent(message, starts[0], self.epoch))

    def tear(self, size: int) -> None:
        """The writer dies while it lays out a record."""
        _, payload = self.payload(size)
        if self.writer.has_room_for(len(payload)) and len(payload) <= self.writer.max_record:
            at = self.writer.position % CAPACITY
            if at + len(payload) + 20 <= CAPACITY:
                self.writer._put(at, [payload], len(payload), DATA)
                self.overwritten = max(self.overwritten, self.writer.position + record_size(len(payload)))
            self.restart()

    def read(self, count: int) -> None:
        while count and self.reader.peek() is not None:
            self.reader.advance()
            self.taken += 1
            count -= 1

    def check(self) -> None:
        found = [one for one in past(self.handle) if not one.problem]
        expected = self.sent[len(self.sent) - len(found) :]
        assert [one.message for one in found] == [one.message for one in expected]
        assert [(one.position, one.epoch) for one in found] == [(one.start, one.epoch) for one in expected]
        unread = len(self.sent) - self.taken
        assert [bool(one.unread_by) for one in found] == [index >= self.taken for index in range(len(self.sent))][
            -len(found) :
        ] * bool(found)
        assert len(found) >= unread
        oldest = max(self.writer.position, self.overwritten) - CAPACITY
        assert len(found) >= sum(one.start >= oldest for one in self.sent)

    def close(self) -> None:
        for end in (self.writer, self.reader):
            end.close()
            end.unmap()


SIZES = st.one_of(st.integers(0, 60), st.integers(0, 1900))
STEPS = st.one_of(
    st.tuples(st.just("send"), SIZES),
    st.tuples(st.just("stream"), st.integers(1, 40), SIZES),
    st.tuples(st.just("send_in_fragments"), st.integers(3, 3000), st.integers(0, 2)),
    st.tuples(st.just("read"), st.integers(1, 50)),
    st.tuples(st.just("tear"), SIZES),
    st.tuples(st.just("restart")),
)


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(STEPS, max_size=60), checked=st.booleans())
def test_the_history_is_what_was_sent_last(steps: list[Any], checked: bool) -> None:
    handle = make_ring()
    model = Model(handle, checked=checked)
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
    model.check()
    model.close()
    handle.close()


def test_nothing_was_sent(handle: RingHandle) -> None:
    assert past(handle) == []


def test_the_last_ones_within_limits(handle: RingHandle) -> None:
    sender = attach_sender(handle.duplicate(), OutputMessage, epoch=3)
    for number in range(10):
        sender.send_nowait(note(number))
    everything = past(handle)
    assert [one.message for one in everything] == [note(number) for number in range(10)]
    assert [(one.epoch, one.sequence) for one in everything] == [(3, number) for number in range(10)]
    assert past(handle, limit=4) == everything[-4:]
    assert past(handle, scan=4 * 48) == everything[-4:]  # they take 48 bytes each
    assert past(handle, scan=4 * 48 - 16) == everything[-3:]
    sender.close()


def test_a_ring_says_which_messages_it_carries(handle: RingHandle) -> None:
    assert remember(handle.memory).fingerprint == UNION


def test_each_slot_has_its_own_unread_messages() -> None:
    handle = make_ring(readers=3)
    sender = attach_sender(handle.duplicate(), OutputMessage)
    quick, slow, gone = (attach_receiver(handle.duplicate(), OutputMessage, slot) for slot in range(3))
    for number in range(3):
        sender.send_nowait(note(number))
    gone.receive_nowait()
    handle.mark_gone(writer=False, slot=2)
    quick.receive_nowait()
    slow.receive_nowait()
    slow.receive_nowait()
    assert [one.unread_by for one in past(handle)] == [[], [0, 2], [0, 1, 2]]
    quick.close()
    assert [one.unread_by for one in past(handle)] == [[], [2], [1, 2]]
    for end in (sender, slow, gone, handle):
        end.close()


@pytest.mark.asyncio
async def test_a_message_in_fragments(no_leaks: None) -> None:
    with joined() as (sender, receiver):
        await sender.send(note(1))
        await sender.send(big(2, tokens=900))  # of up to 3 bytes each
        assert isinstance(sender, SharedSender)
        first, second = past(sender._handle)
        assert (first.message, second.message) == (note(1), big(2, tokens=900))
        assert second.size > CAPACITY // 2
        assert second.unread_by == [0]
        receive_all(receiver)
        await sender.send(note(3, 2000))
        part, last = past(sender._handle)
        assert (last.message, last.unread_by) == (note(3, 2000), [0])
        assert (part.message, part.problem, part.unread_by) == (None, "its beginning is overwritten", [])
        assert 0 < part.size < second.size


def test_a_message_that_its_writer_has_not_finished(handle: RingHandle) -> None:
    writer = RingWriter(handle, UNION, 1)
    assert writer.try_write_pieces([b"x" * 100], 100, FIRST_FRAGMENT)
    (unfinished,) = past(handle)
    assert (unfinished.problem, unfinished.size, unfinished.message) == ("its writer has not finished it", 100, None)
    handle.mark_gone(writer=True)
    successor = RingWriter(handle, UNION, 2)
    assert successor.try_write(msgspec.msgpack.encode(note(1)))
    assert [(one.epoch, one.sequence, one.problem) for one in past(handle)] == [(1, 0, unfinished.problem), (2, 0, "")]
    for end in (writer, successor):
        end.close()
        end.unmap()


def test_a_message_that_was_taken_back_is_none(handle: RingHandle) -> None:
    writer = RingWriter(handle, UNION)
    assert writer.try_write_pieces([b"x" * 100], 100, FIRST_FRAGMENT)
    assert writer.try_write_pieces([], 0, DISCARD)
    assert writer.try_write(msgspec.msgpack.encode(note(1)))
    assert [one.message for one in past(handle)] == [note(1)]
    writer.close()
    writer.unmap()


def test_a_record_that_was_begun_over_the_oldest_one_is_none(handle: RingHandle) -> None:
    writer, reader = RingWriter(handle, UNION), RingReader(handle, UNION)
    write_all(writer, *[48] * 64)  # records of 64 bytes: all of the ring
    read_all(reader)
    writer.unmap()
    handle.mark_gone(writer=True)
    writer = RingWriter(handle, UNION, epoch=2)
    writer._put(0, [b"x" * 48], 48, DATA)  # its number is that of a first record
    assert [(one.epoch, one.sequence) for one in past(handle)] == [(1, number) for number in range(1, 64)]
    for end in (writer, reader):
        end.close()
        end.unmap()


def test_text_that_looks_like_a_record_is_none(handle: RingHandle) -> None:
    """It has the length that leads to the next record, but another number. A scan that begins in it must not be taken in."""
    sender = attach_sender(handle.duplicate(), OutputMessage)
    forged = RECORD.pack(40, DATA, 1, 7).decode()
    sender.send_nowait(note(0))
    sender.send_nowait(UtilityReply(1, message=" " * 14 + forged + "x" * 32))  # the text begins 18 bytes into the payload
    sender.send_nowait(note(2))
    data = remember(handle.memory).data
    assert (data.index(forged.encode()) % 16, len(data) - data.index(forged.encode())) == (0, 64 + 48)
    assert [one.message for one in past(handle, scan=64 + 48)] == [note(2)]
    sender.close()


def test_payloads(no_leaks: None) -> None:
    handle = make_ring(union=Parcel)
    sender = attach_sender(handle, Parcel)
    parcels = [Parcel(number, [Payload(bytes([number]) * number)] * number) for number in range(4)]
    for parcel in parcels:
        sender.send_nowait(parcel)
    assert [one.message for one in remember(handle.memory).messages(Parcel)] == parcels
    sender.close()


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93\xa4Nope\x00\x01", b"\xdd\xff\xff\xff\xff"])
def test_what_does_not_decode_is_told_and_harms_no_other(handle: RingHandle, payload: bytes) -> None:
    writer = RingWriter(handle, UNION)
    for encoded in (msgspec.msgpack.encode(note(1)), payload, msgspec.msgpack.encode(note(2))):
        assert writer.try_write(encoded)
    assert writer.try_write_pieces([payload], len(payload), DATA, attachments=3)
    first, *odd, frame_of_nothing = past(handle)
    assert [one.message for one in (first, *odd)] == [note(1), None, note(2)]
    assert (odd[0].problem, odd[0].size) == ("it does not decode", len(payload))
    assert frame_of_nothing.problem == "it does not decode"
    writer.close()
    writer.unmap()


@pytest.mark.parametrize("size", [0, 100, 1500])
def test_what_a_writer_overtakes_while_it_is_copied_is_left_out(
    handle: RingHandle, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    writer, reader = RingWriter(handle, UNION), RingReader(handle, UNION)
    payloads = [msgspec.msgpack.encode(note(number, size)) for number in range(400)]

    def send(numbers: range) -> None:
        for number in numbers:
            assert writer.try_write(payloads[number])
            assert reader.peek() is not None
            reader.advance()

    send(range(300))
    whole = past(handle)
    monkeypatch.setattr(ring_history, "fence", lambda: send(range(300, 301)))
    rest = past(handle)
    assert rest == whole[-len(rest) :]
    assert len(whole) - 2 <= len(rest) < len(whole)
    monkeypatch.setattr(ring_history, "fence", lambda: send(range(301, 301 + len(whole) + 1)))
    assert past(handle) == []
    for end in (writer, reader):
        end.close()
        end.unmap()


@settings(max_examples=50, deadline=None)
@given(changes=st.dictionaries(st.integers(0, data_offset(2) + CAPACITY - 8), st.binary(min_size=1, max_size=8), min_size=1))
def test_damaged_memory_is_no_ring_or_holds_some_messages(changes: dict[int, bytes]) -> None:
    handle = make_ring(readers=2)
    sender = attach_sender(handle.duplicate(), OutputMessage)
    for number in range(30):
        sender.send_nowait(note(number))
    with map_segment(handle.memory) as memory:
        for at, content in changes.items():
            at = at if at > 320 else at % 24 * 16  # mostly in the header or in the records
            memory[at : at + len(content)] = content
    found: list[PastMessage] = []
    with suppress(SchemaMismatch):
        found = past(handle)
    assert len(found) <= CAPACITY // 16
    sender.close()
    handle.close()


@pytest.mark.parametrize(
    ("word", "value"),
    [(W_READERS, 2**63), (W_READERS, 2**40), (W_CAPACITY, 0), (W_CAPACITY, 8192), (W_HEAD, 7), (W_WRITER, 99)],
)
def test_a_damaged_header_is_told(handle: RingHandle, word: int, value: int) -> None:
    with map_segment(handle.memory) as memory:
        memory[8 * word : 8 * word + 8] = value.to_bytes(8, "little")
    with pytest.raises(SchemaMismatch, match="header is damaged"):
        remember(handle.memory)


def test_memory_that_is_no_ring_is_refused() -> None:
    fd = create_segment("test", 4096)
    with pytest.raises(SchemaMismatch, match="not a ring of this version"):
        remember(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        remember(10_000)
    os.close(fd)
