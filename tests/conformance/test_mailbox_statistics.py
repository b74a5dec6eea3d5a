"""What each side of a mailbox of any kind counts, and waiting for several mailboxes at once."""

import asyncio

import pytest
from mailboxes import big, broadcast, every_kind, fill, joined, make_mailbox, note, parked, receive_all

from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.messages.outputs import OutputMessage
from ringpost.ipc.parking import Parkable, Signal, wait_any

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


@every_kind
async def test_messages_and_bytes_are_counted_on_both_sides(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        assert (sender.statistics().messages, receiver.statistics().messages) == (0, 0)
        for number in range(5):
            sender.send_nowait(note(number, 100))
        assert sender.statistics().messages == 5
        assert sender.statistics().bytes >= 5 * 100
        assert (receiver.statistics().messages, receiver.statistics().bytes) == (0, 0)
        receive_all(receiver)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sender.send(big(9)))
            await receiver.receive()
        assert sender.statistics().messages == receiver.statistics().messages == 6
        assert sender.statistics().bytes == receiver.statistics().bytes >= 5 * 100 + 3000


@every_kind
async def test_the_waits_of_a_receiver_are_counted(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        sender.send_nowait(note(0))
        await receiver.receive()
        assert (receiver.statistics().waits, receiver.statistics().wait_seconds) == (0, 0)
        seconds = 0.0
        for number in range(1, 4):
            task = asyncio.create_task(receiver.receive())
            await parked(task)
            sender.send_nowait(note(number))
            await task
            assert receiver.statistics().waits == number
            assert receiver.statistics().wait_seconds > seconds
            seconds = receiver.statistics().wait_seconds
        assert receiver.statistics().lost_wakeups == 0
        assert sender.statistics().waits == 0


@every_kind
async def test_the_waits_of_a_sender_are_counted(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        fill(sender)
        assert sender.statistics().waits == 0
        task = asyncio.create_task(sender.send(note(1, 900)))
        await parked(task)
        receive_all(receiver)
        await task
        assert sender.statistics().waits >= 1
        assert sender.statistics().wait_seconds > 0
        assert sender.statistics().lost_wakeups == 0


@every_kind
async def test_a_cancelled_wait_is_counted_too(kind: str) -> None:
    with joined(kind=kind) as (_, receiver):
        task = asyncio.create_task(receiver.receive())
        await parked(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert receiver.statistics().waits == 1


@every_kind
async def test_each_reader_counts_for_itself(kind: str) -> None:
    with broadcast(kind, 2) as (sender, receivers):
        sender.send_nowait(note(1))
        sender.send_nowait(note(2))
        receive_all(receivers[0])
        assert [receiver.statistics().messages for receiver in receivers] == [2, 0]


@every_kind
async def test_a_successor_goes_on_counting(kind: str) -> None:
    handle = make_mailbox(kind)
    for epoch in (1, 2, 3):
        sender = attach_sender(handle.duplicate(), OutputMessage, epoch)
        receiver = attach_receiver(handle.duplicate(), OutputMessage, epoch=epoch)
        sender.send_nowait(note(epoch))
        assert receiver.receive_nowait() == note(epoch)
        assert sender.statistics().messages == receiver.statistics().messages == epoch
        sender.close()
        receiver.close()
    handle.close()


async def test_one_task_waits_for_mailboxes_of_every_kind() -> None:
    with joined(kind="shared") as (shared_sender, shared), joined(kind="local") as (local_sender, local):
        signal, full = Signal(), local_sender
        ends: list[Parkable] = [shared, local, signal]
        for number, wake in enumerate((shared_sender.send_nowait, local_sender.send_nowait)):
            task = asyncio.create_task(wait_any(ends))
            await parked(task)
            wake(note(number))
            await task
            assert [end.ready() for end in ends] == [number == 0, number == 1, False]
            receive_all(shared)
            receive_all(local)
        fill(full)
        task = asyncio.create_task(wait_any([shared, full, signal]))
        await parked(task)
        receive_all(local)
        await task
        assert full.ready()
        assert {end.statistics().lost_wakeups for end in (shared, local, full)} == {0}
        # Whoever woke: all that slept have waited.
        assert (shared.statistics().waits, local.statistics().waits) == (3, 2)
