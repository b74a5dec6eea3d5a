"""Mailboxes between processes: wake-ups across them, and streams that lose nothing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mailboxes import big, make_ring, note, peer

from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.errors import Broken, EndOfStream
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.outputs import OutputMessage, UtilityReply
from ringpost.ipc.ring import RingHandle

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]

ROUND_TRIPS, STREAM = 2_000, 20_000


@contextmanager
def two_rings(capacity: int = 4096) -> Iterator[tuple[RingHandle, RingHandle]]:
    """The ring to the peer and the one back, kept open by this process."""
    there, back = make_ring(capacity), make_ring(capacity)
    try:
        yield there, back
    finally:
        there.close()
        back.close()


def sender_of(handle: RingHandle) -> Sender[OutputMessage]:
    return attach_sender(handle.duplicate(), OutputMessage)


def receiver_of(handle: RingHandle) -> Receiver[OutputMessage]:
    return attach_receiver(handle.duplicate(), OutputMessage)


async def test_two_processes_take_turns() -> None:
    with two_rings() as (there, back):
        sender, receiver = sender_of(there), receiver_of(back)
        async with peer("echo", there, back):
            await sender.send(note(0))
            assert await receiver.receive() == note(0)
            descriptors = len(os.listdir("/proc/self/fd"))
            for number in range(ROUND_TRIPS):
                message = note(number, number % 150)
                await sender.send(message)
                assert await receiver.receive() == message
            await sender.send(big(1))
            assert await receiver.receive() == big(1)
            assert len(os.listdir("/proc/self/fd")) == descriptors
            sender.close()
            with pytest.raises(EndOfStream):
                await receiver.receive()
        receiver.close()


async def test_a_stream_from_another_process_is_complete_and_in_order() -> None:
    with two_rings() as (there, _):
        receiver = receiver_of(there)
        async with peer("stream", there, count=STREAM):
            for number in range(STREAM):
                assert await receiver.receive() == note(number, number % 97)
            with pytest.raises(EndOfStream):
                await receiver.receive()
        receiver.close()


async def test_a_stream_to_another_process_is_complete_and_in_order() -> None:
    with two_rings() as (there, back):
        sender, receiver = sender_of(there), receiver_of(back)
        async with peer("drain", there, back):
            for number in range(STREAM):
                await sender.send(note(number, number % 97))
            sender.close()
            assert await receiver.receive() == UtilityReply(STREAM)
        receiver.close()


async def test_what_a_killed_writer_published_still_arrives() -> None:
    with two_rings() as (there, _):
        receiver = receiver_of(there)
        with pytest.raises(AssertionError, match="die ended with code -9"):
            async with peer("die", there, count=30):
                pass
        assert [await receiver.receive() for _ in range(30)] == [note(number) for number in range(30)]
        there.mark_gone(writer=True)
        with pytest.raises(Broken, match="mailbox test: its writer died"):
            await receiver.receive()
        receiver.close()
