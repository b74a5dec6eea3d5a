"""The edges of a ring: laps, attachment, and the ways a stream ends."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mailboxes import HALF, read_all, ring_for_two, write_all

from ringpost.ipc.errors import Broken, SchemaMismatch
from ringpost.ipc.layout import DISCARD, FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT
from ringpost.ipc.ring import RingHandle, create_ring
from ringpost.ipc.ring_reader import RingReader
from ringpost.ipc.ring_writer import RingWriter


@pytest.fixture
def handle() -> Iterator[RingHandle]:
    with ring_for_two() as ring:
        yield ring


@contextmanager
def one_ring() -> Iterator[RingHandle]:
    ring = create_ring("requests[0,0]", 4096, 7)
    yield ring
    ring.close()


def take(reader: RingReader) -> bytes:
    payload = bytes(reader.peek() or b"")
    reader.advance()
    return payload


@pytest.mark.parametrize("sizes", [(HALF, HALF), (HALF, HALF - 1), (HALF, HALF - 15)], ids=["full", "a byte less", "15 less"])
def test_records_at_the_very_end_of_a_lap(handle: RingHandle, sizes: tuple[int, int]) -> None:
    writer, reader = RingWriter(handle, 7), RingReader(handle, 7)
    RingReader(handle, 7, slot=1).close()
    write_all(writer, *sizes)
    assert not writer.try_write(b"")
    assert read_all(reader) == list(sizes)
    write_all(writer, 100, HALF)
    assert read_all(reader) == [100, HALF]


def test_a_lap_that_ends_with_room_for_a_header_only(handle: RingHandle) -> None:
    writer, reader = RingWriter(handle, 7), RingReader(handle, 7)
    RingReader(handle, 7, slot=1).close()
    write_all(writer, HALF, HALF - 16)
    assert not writer.try_write(b"x")  # needs more than the 16 bytes that are left
    assert read_all(reader) == [HALF, HALF - 16]
    write_all(writer, 1, HALF)
    assert read_all(reader) == [1, HALF]


def test_the_largest_record_fits_an_empty_ring_wherever_it_starts(handle: RingHandle) -> None:
    writer, reader = RingWriter(handle, 7), RingReader(handle, 7)
    RingReader(handle, 7, slot=1).close()
    assert writer.max_record == HALF
    for _ in range(4096 // 16):
        write_all(writer, 0)
        assert read_all(reader) == [0]
        write_all(writer, writer.max_record)
        assert read_all(reader) == [writer.max_record]


def test_the_slowest_reader_counts_until_it_leaves(handle: RingHandle) -> None:
    writer, fast, slow = RingWriter(handle, 7), RingReader(handle, 7, 0), RingReader(handle, 7, 1)
    write_all(writer, HALF, HALF)
    assert read_all(fast) == [HALF, HALF]
    assert not writer.try_write(b"")
    slow.close()
    assert writer.try_write(b"")


def test_a_reader_that_is_not_there_yet_loses_nothing(handle: RingHandle) -> None:
    writer = RingWriter(handle, 7)
    write_all(writer, HALF, HALF)
    assert not writer.try_write(b"")
    assert read_all(RingReader(handle, 7, 1)) == [HALF, HALF]


def test_a_side_is_taken_once(handle: RingHandle) -> None:
    writer, reader = RingWriter(handle, 7, epoch=3), RingReader(handle, 7, 1, epoch=4)
    with pytest.raises(Broken, match=r"requests\[0,0\]: its writer is attached already \(epoch 3\)"):
        RingWriter(handle, 7)
    with pytest.raises(Broken, match=r"requests\[0,0\]: its reader 1 is attached already \(epoch 4\)"):
        RingReader(handle, 7, 1)
    writer.close()
    reader.close()
    RingWriter(handle, 7, epoch=5)


@pytest.mark.parametrize("end", [RingWriter, RingReader])
def test_other_messages_are_refused_naming_both(handle: RingHandle, end: type[RingWriter | RingReader]) -> None:
    with pytest.raises(SchemaMismatch, match=r"requests\[0,0\].*0x7, this side speaks 0xbeef"):
        end(handle, 0xBEEF)


def test_fragments_are_joined_and_looking_again_changes_nothing(handle: RingHandle) -> None:
    writer, reader = RingWriter(handle, 7), RingReader(handle, 7)
    records = (b"lost", FIRST_FRAGMENT), (b"", DISCARD), (b"to", FIRST_FRAGMENT), (b"get", FRAGMENT), (b"her", LAST_FRAGMENT)
    for payload, kind in records:
        assert writer.try_write_pieces([payload], len(payload), kind)
    assert writer.try_write(b"next")
    assert [bytes(reader.peek() or b"") for _ in range(3)] == [b"together"] * 3
    reader.advance()
    assert bytes(reader.peek() or b"") == b"next"


def test_the_next_writer_goes_on_where_the_dead_one_stopped(handle: RingHandle) -> None:
    first, reader = RingWriter(handle, 7, epoch=1), RingReader(handle, 7)
    assert first.try_write(b"whole")
    assert first.try_write_pieces([b"half a mess"], 11, FIRST_FRAGMENT)
    handle.mark_gone(writer=True)
    second = RingWriter(handle, 7, epoch=2)
    assert second.try_write(b"new")
    assert [take(reader), take(reader)] == [b"whole", b"new"]


@pytest.mark.parametrize("taken", [0, 1, 2], ids=["nothing", "the beginning", "the middle"])
def test_the_next_reader_leaves_out_a_message_that_the_dead_one_had_begun(taken: int) -> None:
    with one_ring() as ring:
        writer, first = RingWriter(ring, 7), RingReader(ring, 7)
        fragments = ((b"a", FIRST_FRAGMENT), (b"b", FRAGMENT), (b"c", LAST_FRAGMENT))
        for number, (payload, kind) in enumerate(fragments):
            assert writer.try_write_pieces([payload], 1, kind)
            if number < taken:
                assert first.peek() is None  # it has joined this much
        ring.mark_gone(writer=False)
        second = RingReader(ring, 7, epoch=2)
        assert writer.try_write(b"next")
        expected = [b"abc", b"next"] if not taken else [b"next"]
        assert [take(second) for _ in expected] == expected


def test_the_next_of_several_readers_begins_with_what_comes(handle: RingHandle) -> None:
    writer, other, first = RingWriter(handle, 7), RingReader(handle, 7, 0), RingReader(handle, 7, 1)
    write_all(writer, 3)
    assert len(first.peek() or b"") == 3
    handle.mark_gone(writer=False, slot=1)
    for _ in range(5):  # more than a lap, over what the dead one would have read
        write_all(writer, HALF)
        assert len(read_all(other)) in (1, 2)
    second = RingReader(handle, 7, 1, epoch=2)
    assert second.peek() is None
    write_all(writer, HALF, HALF)
    assert not writer.try_write(b"")
    assert read_all(other) == read_all(second) == [HALF, HALF]
