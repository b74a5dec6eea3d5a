"""Payloads, in every kind of mailbox: binary content that crosses beside a message and belongs to the receiver."""

import asyncio
import gc
import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mailboxes import Parcel, broadcast, every_kind, joined, parked, receive_all

from ringpost.ipc.errors import MessageTooLarge, WouldBlock
from ringpost.ipc.frame import MAX_ATTACHMENTS
from ringpost.ipc.messages.payload import Payload
from ringpost.ipc.ring import MAX_MESSAGE

pytestmark = [pytest.mark.usefixtures("no_leaks"), every_kind]


def content(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def parcel(number: int, *contents: bytes | bytearray | memoryview) -> Parcel:
    return Parcel(number, [Payload(data) for data in contents])


@pytest.mark.asyncio
async def test_the_sender_may_overwrite_its_buffer_as_soon_as_it_is_sent(kind: str) -> None:
    with joined(union=Parcel, kind=kind) as (sender, receiver):
        buffer = bytearray(content(1000))
        sender.send_nowait(parcel(1, buffer))
        buffer[:] = bytes(1000)
        await sender.send(parcel(2, buffer))
        buffer[:] = content(1000, seed=2)
        assert await receiver.receive() == parcel(1, content(1000))
        assert await receiver.receive() == parcel(2, bytes(1000))


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [1000, 9000], ids=["within a record", "larger than the mailbox"])
async def test_received_data_stays_whatever_becomes_of_the_mailbox(kind: str, size: int) -> None:
    with joined(union=Parcel, kind=kind) as (sender, receiver):
        async with asyncio.TaskGroup() as tasks:
            for number in range(8):  # the room of the first one is used again
                tasks.create_task(sender.send(parcel(number, content(size, number))))
            received = [await receiver.receive() for _ in range(8)]
        sender.close()
        receiver.close()
        assert received == [parcel(number, content(size, number)) for number in range(8)]


@pytest.mark.asyncio
async def test_several_and_empty_payloads_keep_their_places(kind: str) -> None:
    with joined(union=Parcel, kind=kind) as (sender, receiver):
        messages = [
            parcel(1, b"", content(5), b"", content(33), memoryview(content(64))[16:32]),
            parcel(2, b""),
            parcel(3),
            parcel(4, *(bytes([number]) for number in range(60))),
        ]
        for message in messages:
            sender.send_nowait(message)
        assert receive_all(receiver) == messages


@pytest.mark.asyncio
async def test_a_message_with_payloads_between_others_keeps_the_order(kind: str) -> None:
    with joined(union=Parcel, kind=kind) as (sender, receiver):
        messages = [parcel(number, *[content(20 * number)] * (number % 3)) for number in range(12)]
        for message in messages:
            await sender.send(message)
        assert [await receiver.receive() for _ in messages] == messages


@given(st.lists(st.lists(st.integers(0, 5000), max_size=4), max_size=6))
@settings(max_examples=30, deadline=None)
def test_any_mix_of_payloads_crosses_in_order(kind: str, sizes: list[list[int]]) -> None:
    messages = [parcel(number, *(content(size, number) for size in each)) for number, each in enumerate(sizes)]

    async def cross() -> list[Parcel]:
        with joined(union=Parcel, kind=kind) as (sender, receiver):
            async with asyncio.TaskGroup() as tasks:
                for message in messages:
                    tasks.create_task(sender.send(message))
                return [await receiver.receive() for _ in messages]

    assert asyncio.run(cross()) == messages


@pytest.mark.asyncio
async def test_every_reader_gets_the_payloads(kind: str) -> None:
    with broadcast(kind, 2, union=Parcel) as (sender, receivers):
        sender.send_nowait(parcel(1, content(700)))
        assert [receive_all(receiver) for receiver in receivers] == [[parcel(1, content(700))]] * 2


@pytest.mark.asyncio
async def test_a_full_mailbox_would_block_for_payloads_too(kind: str) -> None:
    with joined(union=Parcel, kind=kind) as (sender, receiver):
        count = 0
        with suppress(WouldBlock):
            while True:
                sender.send_nowait(parcel(count, content(900)))
                count += 1
        assert 2 < count < 5
        with pytest.raises(WouldBlock, match="mailbox test: full"):
            sender.send_nowait(parcel(count, content(900)))
        with pytest.raises(WouldBlock, match="mailbox test: needs to wait"):
            sender.send_nowait(parcel(9, content(2048)))
        assert [message.number for message in receive_all(receiver)] == list(range(count))


@pytest.mark.asyncio
async def test_a_message_cancelled_midway_gives_its_buffer_back(kind: str) -> None:
    with joined(union=Parcel, kind=kind) as (sender, receiver):
        sender.send_nowait(parcel(1, content(1500)))
        buffer = bytearray(content(9000))
        task = asyncio.create_task(sender.send(Parcel(2, [Payload(buffer)])))
        await parked(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        await asyncio.sleep(0)  # the loop holds the error that it has thrown into us until we wait again
        gc.collect()
        buffer.clear()  # raises BufferError while somebody holds a view of it
        following = asyncio.create_task(sender.send(parcel(3, content(6000))))
        assert await receiver.receive() == parcel(1, content(1500))
        assert await receiver.receive() == parcel(3, content(6000))
        await following


@pytest.mark.asyncio
async def test_a_message_that_was_sent_gives_its_buffer_back(kind: str) -> None:
    with joined(union=Parcel, kind=kind) as (sender, receiver):
        for size in (100, 9000):
            buffer = bytearray(content(size))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(sender.send(Parcel(1, [Payload(buffer)])))
                assert await receiver.receive() == parcel(1, content(size))
            buffer.clear()  # raises BufferError while somebody holds a view of it


@pytest.mark.asyncio
async def test_too_much_is_refused_whole(kind: str) -> None:
    with joined(1 << 16, union=Parcel, kind=kind) as (sender, receiver):
        half = bytes(MAX_MESSAGE // 2 + 1)
        buffer = bytearray(b"x")
        for message in (parcel(1, half, half), Parcel(2, [Payload(buffer)] * (MAX_ATTACHMENTS + 1))):
            with pytest.raises(MessageTooLarge, match=r"mailbox test|payloads"):
                sender.send_nowait(message)
            with pytest.raises(MessageTooLarge, match=r"mailbox test|payloads"):
                await sender.send(message)
        del message
        buffer.clear()
        sender.send_nowait(parcel(3, *[b"y"] * MAX_ATTACHMENTS))
        assert receive_all(receiver) == [parcel(3, *[b"y"] * MAX_ATTACHMENTS)]
