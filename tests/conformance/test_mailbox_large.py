"""Messages near and above `largest_nowait`, in every kind of mailbox."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mailboxes import MAKERS, big, every_kind, joined, note, parked, receive_all

from ringpost.ipc.errors import MessageTooLarge, WouldBlock
from ringpost.ipc.messages.outputs import OutputMessage, UtilityReply
from ringpost.ipc.ring import MAX_MESSAGE

pytestmark = [pytest.mark.usefixtures("no_leaks"), every_kind]


def note_of(length: int) -> UtilityReply:
    """A message of so many encoded bytes."""
    message = note(1, length - len(msgspec.msgpack.encode(note(1, 1000))) + 1000)
    assert len(msgspec.msgpack.encode(message)) == length
    return message


@pytest.mark.asyncio
async def test_largest_nowait_is_the_largest(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        for _ in range(5):  # at any place in the mailbox
            sender.send_nowait(note(0, 300))
            assert receive_all(receiver) == [note(0, 300)]
            sender.send_nowait(note_of(sender.largest_nowait))
            assert receive_all(receiver) == [note_of(sender.largest_nowait)]
            with pytest.raises(WouldBlock, match="mailbox test: needs to wait"):
                sender.send_nowait(note_of(sender.largest_nowait + 1))


@pytest.mark.asyncio
async def test_a_larger_message_crosses_by_send_alone(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        for message in (note_of(sender.largest_nowait + 1), big(1)):
            with pytest.raises(WouldBlock):
                sender.send_nowait(message)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(sender.send(message))
                tasks.create_task(sender.send(note(2)))
                assert await receiver.receive() == message
                assert await receiver.receive() == note(2)


@pytest.mark.asyncio
@pytest.mark.parametrize("room", range(4))
async def test_a_large_message_cancelled_midway_is_received_by_nobody(kind: str, room: int) -> None:
    """Whatever of it has crossed by then."""
    with joined(kind=kind) as (sender, receiver):
        for number in range(4):
            sender.send_nowait(note(number, 900))
        task = asyncio.create_task(sender.send(big(10)))
        await parked(task)
        for number in range(room):
            assert await receiver.receive() == note(number, 900)
            await parked(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        following = asyncio.create_task(sender.send(note(11)))
        assert [await receiver.receive() for _ in range(room, 4)] == [note(number, 900) for number in range(room, 4)]
        assert await receiver.receive() == note(11)
        await following
        sender.send_nowait(note(12))
        assert receive_all(receiver) == [note(12)]


@pytest.mark.asyncio
async def test_send_nowait_works_again_after_a_message_cancelled_midway(kind: str) -> None:
    """Whoever waits for room and then sends without waiting must not go round for ever."""
    with joined(kind=kind) as (sender, receiver):
        sender.send_nowait(note(0, 1500))
        task = asyncio.create_task(sender.send(big(1)))
        await parked(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert receive_all(receiver) == [note(0, 1500)]
        sender.send_nowait(note(2))
        assert receive_all(receiver) == [note(2)]


@pytest.mark.asyncio
async def test_a_large_message_may_follow_a_cancelled_one(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        sender.send_nowait(note(0, 900))
        task = asyncio.create_task(sender.send(big(1)))
        await parked(task)
        task.cancel()
        following = asyncio.create_task(sender.send(big(2, 4000)))
        assert await receiver.receive() == note(0, 900)
        assert await receiver.receive() == big(2, 4000)
        await following
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.asyncio
async def test_a_message_beyond_the_limit_is_refused_whole(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        huge = note(1, MAX_MESSAGE)
        with pytest.raises(MessageTooLarge, match=rf"mailbox test: a message of \d+ bytes; at most {MAX_MESSAGE} can cross"):
            await sender.send(huge)
        with pytest.raises(MessageTooLarge):
            sender.send_nowait(huge)
        await sender.send(note(2))
        assert await receiver.receive() == note(2)


@given(st.lists(st.integers(0, 9000), max_size=12), st.sampled_from([4096, 8192]))
@settings(max_examples=30, deadline=None)
def test_any_mix_of_sizes_crosses_in_order(kind: str, sizes: list[int], capacity: int) -> None:
    async def cross() -> list[Any]:
        with joined(capacity, kind=kind) as (sender, receiver):
            async with asyncio.TaskGroup() as tasks:
                for number, size in enumerate(sizes):
                    tasks.create_task(sender.send(note(number, size)))
                return [await receiver.receive() for _ in sizes]

    assert asyncio.run(cross()) == [note(number, size) for number, size in enumerate(sizes)]


def test_every_kind_takes_the_same_messages_without_waiting(kind: str) -> None:
    """What runs in one process to be debugged must not wait elsewhere than between processes."""
    largest = []
    for other in (kind, *MAKERS):
        with joined(kind=other, union=OutputMessage) as (sender, _):
            largest.append(sender.largest_nowait)
    assert len(set(largest)) == 1
