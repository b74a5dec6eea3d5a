"""The ways a stream ends."""

import os
from collections.abc import Iterator

import pytest
from mailboxes import HALF, read_all, ring_for_two, write_all

from ringpost.ipc.errors import Broken, Closed, EndOfStream
from ringpost.ipc.ring import RingHandle
from ringpost.ipc.ring_reader import RingReader
from ringpost.ipc.ring_writer import RingWriter


@pytest.fixture
def handle() -> Iterator[RingHandle]:
    with ring_for_two() as ring:
        yield ring


def test_what_was_published_comes_before_the_end_of_the_stream(handle: RingHandle) -> None:
    writer, reader = RingWriter(handle, 7), RingReader(handle, 7)
    write_all(writer, 1, 2)
    writer.close()
    for size in (1, 2):
        assert len(reader.peek() or b"") == size
        reader.advance()
    with pytest.raises(EndOfStream, match=r"requests\[0,0\]"):
        reader.peek()
    assert reader.readable()


def test_what_a_writer_publishes_while_it_leaves_is_not_overlooked(handle: RingHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = RingWriter(handle, 7), RingReader(handle, 7)

    def leave_at_the_worst_moment() -> bool:
        """Called when the reader has seen an empty ring and asks whether the writer is still there."""
        if not writer.closed:
            assert writer.try_write(b"late")
            writer.close()
        return False

    monkeypatch.setattr(reader, "_writer_may_write", leave_at_the_worst_moment)
    assert bytes(reader.peek() or b"") == b"late"
    reader.advance()
    with pytest.raises(EndOfStream):
        reader.peek()


def test_what_a_dead_writer_published_comes_before_broken(handle: RingHandle) -> None:
    writer, reader = RingWriter(handle, 7), RingReader(handle, 7)
    write_all(writer, 5)
    handle.mark_gone(writer=True)
    assert len(reader.peek() or b"") == 5
    reader.advance()
    with pytest.raises(Broken, match=r"requests\[0,0\]: its writer died"):
        reader.peek()


def test_a_dead_reader_holds_nobody_up(handle: RingHandle) -> None:
    writer, fast = RingWriter(handle, 7), RingReader(handle, 7, 0)
    RingReader(handle, 7, 1)
    write_all(writer, HALF, HALF)
    assert read_all(fast) == [HALF, HALF]
    writer.park()
    handle.mark_gone(writer=False, slot=1)
    assert os.eventfd_read(handle.space_bell) > 0
    assert writer.try_write(b"")


def test_a_writer_without_readers_is_told(handle: RingHandle) -> None:
    writer, readers = RingWriter(handle, 7), [RingReader(handle, 7, slot) for slot in (0, 1)]
    for reader in readers:
        reader.close()
    with pytest.raises(Broken, match=r"requests\[0,0\]: no reader is left"):
        writer.try_write(b"")


def test_a_closed_end_says_so(handle: RingHandle) -> None:
    writer, reader = RingWriter(handle, 7), RingReader(handle, 7)
    for end in (writer, reader):
        end.close()
        end.close()
        end.unmap()
    with pytest.raises(Closed, match=r"requests\[0,0\]"):
        writer.try_write(b"")
    with pytest.raises(Closed, match=r"requests\[0,0\]"):
        reader.peek()
