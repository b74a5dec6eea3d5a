"""A reader that meets bytes which no writer published says so, and names the mailbox."""

from collections.abc import Callable, Iterator

import pytest
from mailboxes import joined, make_ring, note

from ringpost.ipc.attach import attach_receiver
from ringpost.ipc.codec import fingerprint_of
from ringpost.ipc.errors import Broken, SchemaMismatch
from ringpost.ipc.layout import DATA, FIRST_FRAGMENT, LAST_FRAGMENT, RECORD, data_offset
from ringpost.ipc.mailbox import Receiver
from ringpost.ipc.messages.outputs import OutputMessage
from ringpost.ipc.ring import RingHandle, create_ring
from ringpost.ipc.ring_reader import RingReader
from ringpost.ipc.ring_writer import RingWriter
from ringpost.ipc.segment import map_segment
from ringpost.ipc.shared_mailbox import SharedSender

LENGTH, KIND, EPOCH, SEQUENCE = 0, 1, 2, 3  # fields of a record's header


@pytest.fixture
def handle() -> Iterator[RingHandle]:
    ring = create_ring("plans[0]", 4096, 7)
    yield ring
    ring.close()


def overwrite_last(writer: RingWriter, handle: RingHandle, field: int, change: Callable[[int], int]) -> None:
    """Change a field in the header of the record written last, which takes 32 bytes."""
    at = data_offset(1) + (writer._head - 32) % 4096
    with map_segment(handle.memory) as memory:
        header = list(RECORD.unpack_from(memory, at))
        header[field] = change(header[field])
        RECORD.pack_into(memory, at, *header)


def take(reader: RingReader) -> bytes:
    payload = bytes(reader.peek() or b"")
    reader.advance()
    return payload


@pytest.mark.parametrize(
    ("field", "value"),
    [(KIND, 0), (KIND, 7), (KIND, LAST_FRAGMENT), (SEQUENCE, 1), (LENGTH, 4096), (LENGTH, 2**32 - 1), (LENGTH, 33)],
    ids=["kind 0", "kind 7", "no beginning", "sequence", "beyond the lap", "beyond everything", "beyond what was published"],
)
def test_a_corrupt_record_breaks_the_mailbox(handle: RingHandle, field: int, value: int) -> None:
    writer, reader = RingWriter(handle, 7), RingReader(handle, 7)
    for number in range(300):  # some laps, so that old records lie behind the corrupt one
        assert writer.try_write(bytes([number % 256]))
        assert take(reader) == bytes([number % 256])
    assert writer.try_write(b"x" * 10)
    overwrite_last(writer, handle, field, lambda old: old + value if field == SEQUENCE else value)
    for _ in range(2):
        with pytest.raises(Broken, match=r"mailbox plans\[0\]: corrupt record"):
            reader.peek()


def test_a_record_of_an_unknown_writer_must_be_its_first(handle: RingHandle) -> None:
    writer, reader = RingWriter(handle, 7), RingReader(handle, 7)
    assert writer.try_write(b"0")
    assert take(reader) == b"0"
    assert writer.try_write(b"1")
    overwrite_last(writer, handle, EPOCH, lambda _: 99)
    with pytest.raises(Broken, match="sequence 1 where 0 was due"):
        reader.peek()


def test_memory_that_is_no_ring_is_refused(handle: RingHandle) -> None:
    with map_segment(handle.memory) as memory:
        memory[:8] = bytes(8)
    with pytest.raises(SchemaMismatch, match=r"plans\[0\]: the memory is not a ring"):
        RingReader(handle, 7)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x93\xa4Nope\x00\x01", b"\x93\xacUtilityReply\xa1x\xc3", b"\x91\xa1\xff", b"\x92\xacUtilityReply\x01rest"],
    ids=["nothing", "no MessagePack", "unknown message", "wrong type", "no UTF-8", "too much"],
)
def test_a_record_that_does_not_decode_breaks_the_mailbox(payload: bytes, no_leaks: None) -> None:
    with joined() as (sender, receiver):
        assert isinstance(sender, SharedSender)
        assert sender._ring.try_write(payload)
        for _ in range(2):
            with pytest.raises(Broken, match="mailbox test: a record does not decode"):
                receiver.receive_nowait()


@pytest.mark.parametrize("kind", ["undecodable", "fragment"])
def test_an_end_can_be_closed_while_its_error_is_handled(kind: str, no_leaks: None) -> None:
    """The traceback of the error keeps frames alive, but no view of the memory."""
    handle = make_ring()
    receiver: Receiver[OutputMessage] = attach_receiver(handle.duplicate(), OutputMessage)
    writer = RingWriter(handle, fingerprint_of(OutputMessage))
    assert writer.try_write_pieces([b"\xc1"], 1, DATA if kind == "undecodable" else FIRST_FRAGMENT)
    writer.close()
    writer.unmap()
    handle.close()
    with pytest.raises(Exception, match="mailbox test") as caught:
        receiver.receive_nowait()
    receiver.close()
    assert caught.value.__traceback__ is not None


def test_the_message_after_a_taken_one_is_unharmed(no_leaks: None) -> None:
    with joined() as (sender, receiver):
        for number in range(3):
            sender.send_nowait(note(number, number * 7))
        assert [receiver.receive_nowait() for _ in range(3)] == [note(n, n * 7) for n in range(3)]
