"""The contract of a mailbox: order, bounds, waiting, cancellation, and how a stream ends."""

import asyncio
from typing import Any

import pytest
from mailboxes import joined, note, parked

from ringpost.ipc.errors import WouldBlock
from ringpost.ipc.mailbox import Sender
from ringpost.ipc.messages.control import Stop

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


def fill(sender: Sender[Any]) -> int:
    """Send numbered messages until there is no room; returns how many."""
    count = 0
    try:
        while True:
            sender.send_nowait(note(count, 200))
            count += 1
    except WouldBlock:
        return count


async def test_messages_come_in_order_and_an_empty_mailbox_would_block() -> None:
    with joined() as (sender, receiver):
        with pytest.raises(WouldBlock, match="mailbox test: empty"):
            receiver.receive_nowait()
        for number in range(20):
            sender.send_nowait(note(number))
        assert [await receiver.receive() for _ in range(20)] == [note(number) for number in range(20)]
        with pytest.raises(WouldBlock):
            receiver.receive_nowait()


async def test_a_full_mailbox_would_block_and_loses_nothing() -> None:
    with joined() as (sender, receiver):
        count = fill(sender)
        assert count > 10
        with pytest.raises(WouldBlock, match="mailbox test: full"):
            sender.send_nowait(note(99, 200))
        assert [receiver.receive_nowait() for _ in range(count)] == [note(number, 200) for number in range(count)]
        assert fill(sender) >= count - 1


async def test_receive_waits_for_a_message() -> None:
    with joined() as (sender, receiver):
        for number in range(3):
            task = asyncio.create_task(receiver.receive())
            await parked(task)
            await sender.send(note(number))
            assert await task == note(number)


async def test_sends_wait_for_room_and_keep_their_order() -> None:
    with joined() as (sender, receiver):
        count = fill(sender)
        tasks = [asyncio.create_task(sender.send(note(count + number, 1500))) for number in range(3)]
        await parked(*tasks)
        numbers = [(await receiver.receive()).call for _ in range(count + 3)]
        assert numbers == list(range(count + 3))
        await asyncio.gather(*tasks)


async def test_a_small_message_does_not_overtake_a_large_one_that_waits() -> None:
    with joined() as (sender, receiver):
        for number in range(4):
            sender.send_nowait(note(number, 900))
        waiting = asyncio.create_task(sender.send(note(4, 900)))
        await parked(waiting)
        with pytest.raises(WouldBlock, match="needs to wait"):
            sender.send_nowait(note(5))  # for which there is room
        assert [(await receiver.receive()).call for _ in range(5)] == [0, 1, 2, 3, 4]
        await waiting
        sender.send_nowait(note(5))
        assert receiver.receive_nowait() == note(5)


async def test_a_nowait_message_does_not_overtake_a_send_that_is_next_in_turn() -> None:
    """Between two waiting sends there is a moment when neither holds the turn; whoever runs then must not slip in."""
    with joined() as (sender, receiver):
        count = fill(sender)

        async def send_then_slip_in() -> None:
            await sender.send(note(count, 200))
            with pytest.raises(WouldBlock):
                sender.send_nowait(note(-1))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_then_slip_in())
            tasks.create_task(sender.send(note(count + 1, 200)))
            await asyncio.sleep(0)  # both have begun, and wait
            for number in range(count):
                assert await receiver.receive() == note(number, 200)
        assert await receiver.receive() == note(count, 200)
        assert await receiver.receive() == note(count + 1, 200)


async def test_a_cancelled_receive_takes_nothing() -> None:
    with joined() as (sender, receiver):
        for when in ("before", "after"):
            task = asyncio.create_task(receiver.receive())
            await parked(task)
            if when == "before":
                task.cancel()
            await sender.send(note(1))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert receiver.receive_nowait() == note(1)


async def test_a_cancelled_send_is_received_by_nobody() -> None:
    with joined() as (sender, receiver):
        count = fill(sender)
        first, second = (asyncio.create_task(sender.send(note(number, 300))) for number in (1000, 2000))
        await parked(first, second)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        numbers = [(await receiver.receive()).call for _ in range(count + 1)]
        await second
        assert numbers == [*range(count), 2000]


async def test_a_message_of_another_mailbox_is_a_type_error() -> None:
    with joined() as (sender, receiver):
        with pytest.raises(TypeError, match="Stop does not belong"):
            sender.send_nowait(Stop())
        with pytest.raises(TypeError, match="Stop does not belong"):
            await sender.send(Stop())
        with pytest.raises(WouldBlock):
            receiver.receive_nowait()
