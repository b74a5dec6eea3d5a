"""The edges of a ring: laps, attachment, and the ways a stream ends."""

from collections.abc import Iterator

import pytest
from mailboxes import HALF, read_all, ring_for_two, write_all

from ringpost.ipc.errors import Broken, SchemaMismatch
from ringpost.ipc.layout import DISCARD, FRAGMENT, LAST_FRAGMENT
from ringpost.ipc.ring import RingHandle, RingReader, RingWriter, mark_gone


@pytest.fixture
def handle() -> Iterator[RingHandle]:
    with ring_for_two() as ring:
        yield ring


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
    for payload, kind in ((b"lost", FRAGMENT), (b"", DISCARD), (b"to", FRAGMENT), (b"get", FRAGMENT), (b"her", LAST_FRAGMENT)):
        assert writer.try_write(payload, kind)
    assert writer.try_write(b"next")
    assert [bytes(reader.peek() or b"") for _ in range(3)] == [b"together"] * 3
    reader.advance()
    assert bytes(reader.peek() or b"") == b"next"


def test_the_next_writer_goes_on_where_the_dead_one_stopped(handle: RingHandle) -> None:
    first, reader = RingWriter(handle, 7, epoch=1), RingReader(handle, 7)
    assert first.try_write(b"whole")
    assert first.try_write(b"half a mess", FRAGMENT)
    mark_gone(handle, writer=True)
    second = RingWriter(handle, 7, epoch=2)
    assert second.try_write(b"new", LAST_FRAGMENT)
    assert bytes(reader.peek() or b"") == b"whole"
    reader.advance()
    assert bytes(reader.peek() or b"") == b"new"
