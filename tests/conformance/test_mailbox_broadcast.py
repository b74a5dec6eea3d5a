"""One sender and several receivers, in every kind of mailbox: each gets everything, and the slowest sets the pace."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from mailboxes import big, broadcast, every_kind, make_mailbox, note, parked, receive_all

from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.errors import Broken, EndOfStream, WouldBlock
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.outputs import OutputMessage

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks"), every_kind]


async def take(receiver: Receiver[Any], count: int) -> list[Any]:
    return [await receiver.receive() for _ in range(count)]


async def send_each(sender: Sender[Any], messages: list[OutputMessage]) -> None:
    for message in messages:
        await sender.send(message)


async def test_every_reader_gets_every_message_and_the_slowest_sets_the_pace(kind: str) -> None:
    with broadcast(kind, 3) as (sender, receivers):
        messages: list[OutputMessage] = [big(0), *(note(number, 300) for number in range(1, 60))]
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(send_each(sender, messages))
            quick = [tasks.create_task(take(receiver, len(messages))) for receiver in receivers[:2]]
            await parked(sending, *quick)
            assert await take(receivers[2], len(messages)) == messages
        assert [task.result() for task in quick] == [messages] * 2


async def test_a_slow_reader_holds_the_sender_up_whoever_else_reads(kind: str) -> None:
    with broadcast(kind, 2) as (sender, (quick, slow)):
        with suppress(WouldBlock):
            while True:
                sender.send_nowait(note(1, 900))
        assert len(receive_all(quick)) == 4
        with pytest.raises(WouldBlock, match="mailbox test: full"):
            sender.send_nowait(note(2, 900))
        assert slow.receive_nowait() == note(1, 900)
        sender.send_nowait(note(2, 900))
        assert receive_all(quick) == [note(2, 900)]
        assert receive_all(slow) == [*[note(1, 900)] * 3, note(2, 900)]


@pytest.mark.parametrize("how", ["closed", "gone"])
async def test_a_slot_that_leaves_holds_nobody_up(kind: str, how: str) -> None:
    handle = make_mailbox(kind, readers=2)
    sender: Sender[OutputMessage] = attach_sender(handle.duplicate(), OutputMessage)
    quick, slow = (attach_receiver(handle.duplicate(), OutputMessage, slot) for slot in (0, 1))
    sending = asyncio.create_task(send_each(sender, [note(number, 900) for number in range(10)]))
    first = asyncio.create_task(take(quick, 4))
    assert await first == [note(number, 900) for number in range(4)]
    await parked(sending)
    if how == "closed":
        slow.close()
    else:
        handle.mark_gone(writer=False, slot=1)
    assert await take(quick, 6) == [note(number, 900) for number in range(4, 10)]
    await sending
    for end in (sender, quick, slow, handle):
        end.close()


async def test_the_sender_is_told_when_the_last_slot_has_left(kind: str) -> None:
    with broadcast(kind, 2) as (sender, receivers):
        sending = asyncio.create_task(send_each(sender, [note(number, 900) for number in range(10)]))
        for receiver in receivers:
            await parked(sending)
            receiver.close()
        with pytest.raises(Broken, match="mailbox test: no reader is left"):
            await sending


async def test_the_end_wakes_every_reader(kind: str) -> None:
    with broadcast(kind, 3) as (sender, receivers):
        tasks = [asyncio.create_task(receiver.receive()) for receiver in receivers]
        await parked(*tasks)
        sender.close()
        for task in tasks:
            with pytest.raises(EndOfStream):
                await task


async def test_the_dead_writer_is_told_to_every_reader(kind: str) -> None:
    handle = make_mailbox(kind, readers=2)
    sender: Sender[OutputMessage] = attach_sender(handle.duplicate(), OutputMessage)
    receivers = [attach_receiver(handle.duplicate(), OutputMessage, slot) for slot in (0, 1)]
    tasks = [asyncio.create_task(receiver.receive()) for receiver in receivers]
    await parked(*tasks)
    handle.mark_gone(writer=True)
    for task in tasks:
        with pytest.raises(Broken, match="its writer died"):
            await task
    for end in (sender, *receivers, handle):
        end.close()


async def test_the_next_of_several_readers_begins_with_what_comes(kind: str) -> None:
    handle = make_mailbox(kind, readers=2)
    sender: Sender[OutputMessage] = attach_sender(handle.duplicate(), OutputMessage)
    other, first = (attach_receiver(handle.duplicate(), OutputMessage, slot) for slot in (0, 1))
    sender.send_nowait(note(1))
    handle.mark_gone(writer=False, slot=1)
    sender.send_nowait(note(2))
    second = attach_receiver(handle.duplicate(), OutputMessage, 1, epoch=2)
    sender.send_nowait(note(3))
    assert receive_all(second) == [note(3)]
    assert receive_all(other) == [note(1), note(2), note(3)]
    for end in (sender, other, first, second, handle):
        end.close()
