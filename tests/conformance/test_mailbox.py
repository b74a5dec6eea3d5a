"""The contract of a mailbox, for every kind: order, bounds, waiting, and cancellation."""

import asyncio
from typing import Any

import pytest
from mailboxes import every_kind, joined, note, parked, receive_all

from ringpost.ipc.errors import WouldBlock
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.control import Stop

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks"), every_kind]


def fill_numbered(sender: Sender[Any], size: int = 200) -> int:
    """Send numbered messages until there is no room; returns how many."""
    count = 0
    try:
        while True:
            sender.send_nowait(note(count, size))
            count += 1
    except WouldBlock:
        return count


async def numbers_of(receiver: Receiver[Any], count: int) -> list[int]:
    return [(await receiver.receive()).call for _ in range(count)]


async def test_messages_come_once_and_in_order_and_an_empty_mailbox_would_block(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        with pytest.raises(WouldBlock, match="mailbox test: empty"):
            receiver.receive_nowait()
        for number in range(20):
            sender.send_nowait(note(number))
        assert [await receiver.receive() for _ in range(20)] == [note(number) for number in range(20)]
        with pytest.raises(WouldBlock):
            receiver.receive_nowait()


async def test_both_ends_bear_the_name_of_the_mailbox(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        assert (sender.name, receiver.name) == ("test", "test")


async def test_a_full_mailbox_would_block_and_loses_nothing(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        count = fill_numbered(sender)
        assert 10 < count < 4096 / 200
        with pytest.raises(WouldBlock, match="mailbox test: full"):
            sender.send_nowait(note(99, 200))
        assert [receiver.receive_nowait() for _ in range(count)] == [note(number, 200) for number in range(count)]
        assert fill_numbered(sender) >= count - 1


async def test_messages_without_content_are_bounded_too(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        count = fill_numbered(sender, size=0)
        assert count <= 4096 / 16
        assert await numbers_of(receiver, count) == list(range(count))


async def test_receive_waits_for_a_message(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        for number in range(3):
            task = asyncio.create_task(receiver.receive())
            await parked(task)
            await sender.send(note(number))
            assert await task == note(number)


async def test_sends_wait_for_room_and_keep_their_order(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        count = fill_numbered(sender)
        tasks = [asyncio.create_task(sender.send(note(count + number, 1500))) for number in range(3)]
        await parked(*tasks)
        assert await numbers_of(receiver, count + 3) == list(range(count + 3))
        await asyncio.gather(*tasks)


async def test_a_small_message_does_not_overtake_a_large_one_that_waits(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        for number in range(4):
            sender.send_nowait(note(number, 900))
        waiting = asyncio.create_task(sender.send(note(4, 900)))
        await parked(waiting)
        with pytest.raises(WouldBlock, match="needs to wait"):
            sender.send_nowait(note(5))  # for which there is room
        assert await numbers_of(receiver, 5) == [0, 1, 2, 3, 4]
        await waiting
        sender.send_nowait(note(5))
        assert receiver.receive_nowait() == note(5)


async def test_a_nowait_message_does_not_overtake_a_send_that_is_next_in_turn(kind: str) -> None:
    """Between two waiting sends there is a moment when neither holds the turn; whoever runs then must not slip in."""
    with joined(kind=kind) as (sender, receiver):
        count = fill_numbered(sender)

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


@pytest.mark.parametrize("when", ["before it begins", "while it waits", "when the message is there"])
async def test_a_cancelled_receive_takes_nothing(kind: str, when: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        task = asyncio.create_task(receiver.receive())
        if when != "before it begins":
            await parked(task)
        if when == "when the message is there":
            sender.send_nowait(note(1))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if when != "when the message is there":
            sender.send_nowait(note(1))
        assert receiver.receive_nowait() == note(1)
        following = asyncio.create_task(receiver.receive())
        await parked(following)
        sender.send_nowait(note(2))
        assert await following == note(2)


@pytest.mark.parametrize("when", ["before it begins", "while it waits", "when there is room"])
async def test_a_cancelled_send_is_received_by_nobody(kind: str, when: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        count = fill_numbered(sender)
        first, second = (asyncio.create_task(sender.send(note(number, 300))) for number in (1000, 2000))
        if when != "before it begins":
            await parked(first, second)
        taken = [receiver.receive_nowait().call for _ in range(5)] if when == "when there is room" else []
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert taken + await numbers_of(receiver, count + 1 - len(taken)) == [*range(count), 2000]
        await second


async def test_a_send_that_waits_for_its_turn_can_be_cancelled(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        count = fill_numbered(sender)
        tasks = [asyncio.create_task(sender.send(note(count + number, 300))) for number in range(3)]
        await parked(*tasks)
        tasks[1].cancel()
        assert await numbers_of(receiver, count + 2) == [*range(count), count, count + 2]
        await asyncio.gather(tasks[0], tasks[2])
        sender.send_nowait(note(1))
        assert receive_all(receiver) == [note(1)]
        assert tasks[1].cancelled()


async def test_a_message_of_another_mailbox_is_a_type_error(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        with pytest.raises(TypeError, match="Stop does not belong"):
            sender.send_nowait(Stop())
        with pytest.raises(TypeError, match="Stop does not belong"):
            await sender.send(Stop())
        with pytest.raises(WouldBlock):
            receiver.receive_nowait()


async def test_two_tasks_that_wait_at_one_end_are_told(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        first, second = asyncio.create_task(receiver.receive()), asyncio.create_task(receiver.receive())
        with pytest.raises(RuntimeError, match="mailbox test: two tasks wait at one end"):
            await second
        await sender.send(note(1))
        assert await first == note(1)
