"""With checksums, a byte that changed on the way breaks the mailbox, wherever it lies."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mailboxes import HALF, Parcel, big, make_ring, note, parked, read_all, receive_all, ring_for_two, write_all

from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.errors import Broken
from ringpost.ipc.layout import CHECKSUM, RECORD_BYTES, data_offset
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.outputs import OutputMessage
from ringpost.ipc.messages.payload import Payload
from ringpost.ipc.ring import RingHandle
from ringpost.ipc.ring_reader import RingReader
from ringpost.ipc.ring_writer import RingWriter
from ringpost.ipc.segment import map_segment

pytestmark = pytest.mark.usefixtures("no_leaks")


def flip(handle: RingHandle, place: int) -> None:
    """Change one bit of the byte at this place of the data area."""
    with map_segment(handle.memory) as memory:
        memory[data_offset(len(handle.data_bells)) + place] ^= 0x10


@contextmanager
def checked(union: Any, *, checked: bool = True) -> Iterator[tuple[Sender[Any], Receiver[Any], RingHandle]]:
    """Both ends, and the handle that they were made from."""
    handle = make_ring(union=union)
    receiver: Receiver[Any] = attach_receiver(handle.duplicate(), union)
    sender: Sender[Any] = attach_sender(handle.duplicate(), union, checked=checked)
    try:
        yield sender, receiver, handle
    finally:
        for end in (sender, receiver, handle):
            end.close()


@pytest.mark.parametrize("place", [0, 99, 100], ids=["the first byte", "the last byte", "the checksum"])
def test_a_record_that_changed_is_refused(place: int) -> None:
    with ring_for_two() as handle:
        writer, reader = RingWriter(handle, 7, checked=True), RingReader(handle, 7)
        write_all(writer, 10, 100)
        flip(handle, 32 + RECORD_BYTES + place)  # the first record takes 16 + 10 + 4, up to the next multiple of 16
        assert len(reader.peek() or b"") == 10
        reader.advance()
        for _ in range(2):
            with pytest.raises(Broken, match=r"requests\[0,0\]: corrupt record at 32: its checksum does not fit"):
                reader.peek()


@pytest.mark.parametrize("size", range(0, 40, 3))
def test_records_of_any_size_pass(size: int) -> None:
    with ring_for_two() as handle:
        writer, reader = RingWriter(handle, 7, checked=True), RingReader(handle, 7)
        RingReader(handle, 7, slot=1).close()
        for _ in range(200):  # some laps
            write_all(writer, size, size + 1)
            assert read_all(reader) == [size, size + 1]


def test_the_largest_record_leaves_room_for_its_checksum() -> None:
    with ring_for_two() as handle:
        writer, reader = RingWriter(handle, 7, checked=True), RingReader(handle, 7)
        RingReader(handle, 7, slot=1).close()
        assert writer.max_record == HALF - CHECKSUM.size
        for _ in range(300):
            write_all(writer, 0, writer.max_record)
            assert read_all(reader) == [0, writer.max_record]


def test_a_message_that_changed_breaks_the_mailbox() -> None:
    with checked(OutputMessage) as (sender, receiver, handle):
        sender.send_nowait(note(1, 100))
        flip(handle, RECORD_BYTES + 50)  # within the text, so that it would decode
        with pytest.raises(Broken, match="mailbox test: corrupt record at 0: its checksum does not fit"):
            receiver.receive_nowait()


def test_without_checksums_a_changed_text_passes() -> None:
    with checked(OutputMessage, checked=False) as (sender, receiver, handle):
        sender.send_nowait(note(1, 100))
        flip(handle, RECORD_BYTES + 50)
        assert receiver.receive_nowait() != note(1, 100)


def test_payloads_are_checked() -> None:
    with checked(Parcel) as (sender, receiver, handle):
        sender.send_nowait(Parcel(1, [Payload(bytes(300)), Payload(bytes(300))]))
        assert receive_all(receiver) == [Parcel(1, [Payload(bytes(300)), Payload(bytes(300))])]
        start = sender.statistics().bytes
        sender.send_nowait(Parcel(2, [Payload(bytes(300))]))
        flip(handle, start + RECORD_BYTES + 250)
        with pytest.raises(Broken, match="its checksum does not fit"):
            receiver.receive_nowait()


@pytest.mark.asyncio
@pytest.mark.parametrize("union", [OutputMessage, Parcel], ids=["fragments", "fragments of payloads"])
async def test_fragments_are_checked(union: Any) -> None:
    message = big(1) if union is OutputMessage else Parcel(1, [Payload(bytes(9000))])
    with checked(union) as (sender, receiver, handle):
        sending = asyncio.create_task(sender.send(message))
        assert await receiver.receive() == message
        await sending
        start = sender.statistics().bytes % 4096
        sending = asyncio.create_task(sender.send(message))
        await parked(sending)
        flip(handle, (start + RECORD_BYTES + 700) % 4096)
        with pytest.raises(Broken, match="its checksum does not fit"):
            await receiver.receive()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending


def test_a_reader_takes_records_with_and_without_checksums() -> None:
    with checked(OutputMessage) as (sender, receiver, handle):
        sender.send_nowait(note(1))
        sender.close()
        second: Sender[OutputMessage] = attach_sender(handle.duplicate(), OutputMessage, epoch=2)
        second.send_nowait(note(2))
        assert receive_all(receiver) == [note(1), note(2)]
        second.close()
