"""Messages larger than the ring, and broadcast."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mailboxes import big, joined, make_ring, note, parked

from ringpost.ipc.errors import MessageTooLarge, WouldBlock
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.outputs import OutputMessage
from ringpost.ipc.ring import MAX_MESSAGE

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.asyncio
async def test_a_message_larger_than_the_ring_crosses() -> None:
    with joined() as (sender, receiver):
        with pytest.raises(WouldBlock):
            sender.send_nowait(big(1))
        task = asyncio.create_task(sender.send(big(1)))
        await parked(task)
        after = asyncio.create_task(sender.send(note(2)))
        assert await receiver.receive() == big(1)
        assert await receiver.receive() == note(2)
        await asyncio.gather(task, after)


@pytest.mark.asyncio
@pytest.mark.parametrize("received", [0, 1, 3])
async def test_a_message_cancelled_midway_is_received_by_nobody(received: int) -> None:
    with joined() as (sender, receiver):
        task = asyncio.create_task(sender.send(big(1)))
        await parked(task)
        waiting = asyncio.create_task(receiver.receive())
        for _ in range(received):  # the two ends take turns
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(WouldBlock):
            sender.send_nowait(note(2))  # the reader has to be told first, and only `send` does that
        await sender.send(note(3))
        sender.send_nowait(note(4))
        assert await waiting == note(3)
        assert await receiver.receive() == note(4)


@pytest.mark.asyncio
async def test_a_large_message_may_follow_a_cancelled_one() -> None:
    with joined() as (sender, receiver):
        task = asyncio.create_task(sender.send(big(1)))
        await parked(task)
        task.cancel()
        following = asyncio.create_task(sender.send(big(2, 4000)))
        assert await receiver.receive() == big(2, 4000)
        await following
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.asyncio
async def test_a_message_beyond_the_limit_is_refused_whole() -> None:
    with joined() as (sender, receiver):
        huge = note(1, MAX_MESSAGE)
        with pytest.raises(MessageTooLarge, match=rf"mailbox test: a message of \d+ bytes; at most {MAX_MESSAGE} can cross"):
            await sender.send(huge)
        with pytest.raises(MessageTooLarge):
            sender.send_nowait(huge)
        await sender.send(note(2))
        assert await receiver.receive() == note(2)


@given(st.lists(st.integers(0, 9000), max_size=12), st.sampled_from([4096, 8192]))
@settings(max_examples=30, deadline=None)
def test_any_mix_of_sizes_crosses_in_order(sizes: list[int], capacity: int) -> None:
    async def cross() -> list[Any]:
        with joined(capacity) as (sender, receiver):
            async with asyncio.TaskGroup() as tasks:
                for number, size in enumerate(sizes):
                    tasks.create_task(sender.send(note(number, size)))
                return [await receiver.receive() for _ in sizes]

    assert asyncio.run(cross()) == [note(number, size) for number, size in enumerate(sizes)]


@pytest.mark.asyncio
async def test_every_reader_gets_every_message_and_the_slowest_sets_the_pace() -> None:
    handle = make_ring(readers=3)
    receivers = [Receiver[OutputMessage](handle.duplicate(), OutputMessage, slot) for slot in range(3)]
    sender: Sender[OutputMessage] = Sender(handle, OutputMessage)
    messages: list[OutputMessage] = [big(0), *(note(number, 300) for number in range(1, 60))]

    async def send_all() -> None:
        for message in messages:
            await sender.send(message)

    sending = asyncio.create_task(send_all())
    quick = [asyncio.create_task(take(receiver, len(messages))) for receiver in receivers[:2]]
    await parked(sending)
    assert not any(task.done() for task in quick)
    assert await take(receivers[2], len(messages)) == messages
    assert [await task for task in quick] == [messages] * 2
    await sending
    sender.close()
    for receiver in receivers:
        receiver.close()


async def take(receiver: Receiver[Any], count: int) -> list[Any]:
    return [await receiver.receive() for _ in range(count)]
