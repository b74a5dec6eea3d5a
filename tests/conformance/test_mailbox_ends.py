"""How a stream ends, on either side and for every kind of mailbox, and who is told."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from mailboxes import big, every_kind, fill, joined, make_mailbox, note, parked, receive_all

from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.errors import Broken, Closed, EndOfStream
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.outputs import OutputMessage, UtilityReply

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks"), every_kind]


async def test_a_closed_writer_ends_the_stream_after_its_last_message(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        await sender.send(note(1))
        sender.close()
        sender.close()
        assert await receiver.receive() == note(1)
        for _ in range(2):
            with pytest.raises(EndOfStream, match="mailbox test"):
                await receiver.receive()
            with pytest.raises(EndOfStream, match="mailbox test"):
                receiver.receive_nowait()


async def test_the_end_wakes_a_waiting_reader(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        task = asyncio.create_task(receiver.receive())
        await parked(task)
        sender.close()
        with pytest.raises(EndOfStream):
            await task


async def test_closing_the_sender_wakes_its_own_waiters(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        fill(sender)
        tasks = [asyncio.create_task(sender.send(note(number, 300))) for number in (1, 2)]
        await parked(*tasks)
        sender.close()
        for task in tasks:
            with pytest.raises(Closed, match="mailbox test"):
                await task
        with suppress(EndOfStream):
            while True:
                assert receiver.receive_nowait().call == 0  # neither of the two
        assert receiver.statistics().messages > 2


async def test_closing_the_receiver_wakes_its_own_waiter(kind: str) -> None:
    with joined(kind=kind) as (_sender, receiver):
        task = asyncio.create_task(receiver.receive())
        await parked(task)
        receiver.close()
        with pytest.raises(Closed, match="mailbox test"):
            await task


@pytest.mark.parametrize("message", [note(1), note(1, 1500), big(1)], ids=["small", "medium", "large"])
async def test_a_closed_sender_used_again(kind: str, message: OutputMessage) -> None:
    with joined(kind=kind) as (sender, _):
        sender.close()
        with pytest.raises(Closed, match="mailbox test"):
            sender.send_nowait(message)
        with pytest.raises(Closed, match="mailbox test"):
            await sender.send(message)
        with pytest.raises(Closed, match="mailbox test"):
            sender.statistics()


async def test_a_closed_receiver_used_again(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        sender.send_nowait(note(1))
        receiver.close()
        receiver.close()
        with pytest.raises(Closed, match="mailbox test"):
            receiver.receive_nowait()
        with pytest.raises(Closed, match="mailbox test"):
            await receiver.receive()
        with pytest.raises(Closed, match="mailbox test"):
            receiver.statistics()


async def test_a_writer_whose_reader_left_is_told_when_the_room_is_used_up(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        task = asyncio.create_task(send_for_ever(sender))
        await parked(task)
        receiver.close()
        with pytest.raises(Broken, match="mailbox test: no reader is left"):
            await task
        with pytest.raises(Broken, match="mailbox test: no reader is left"):
            sender.send_nowait(note(1, 1500))


async def send_for_ever(sender: Sender[Any]) -> None:
    while True:
        await sender.send(note(1))


async def test_a_reader_is_told_that_its_writer_died_after_its_last_message(kind: str) -> None:
    watched = make_mailbox(kind)
    sender: Sender[OutputMessage] = attach_sender(watched.duplicate(), OutputMessage)
    receiver: Receiver[OutputMessage] = attach_receiver(watched.duplicate(), OutputMessage)
    task = asyncio.create_task(receiver.receive())
    await parked(task)
    watched.mark_gone(writer=True)
    with pytest.raises(Broken, match="mailbox test: its writer died"):
        await task
    for end in (receiver, sender, watched):
        end.close()


async def test_what_a_dead_writer_had_sent_still_arrives(kind: str) -> None:
    watched = make_mailbox(kind)
    sender: Sender[OutputMessage] = attach_sender(watched.duplicate(), OutputMessage)
    receiver: Receiver[OutputMessage] = attach_receiver(watched.duplicate(), OutputMessage)
    sender.send_nowait(note(1))
    watched.mark_gone(writer=True)
    assert await receiver.receive() == note(1)
    with pytest.raises(Broken, match="mailbox test: its writer died"):
        receiver.receive_nowait()
    for end in (receiver, sender, watched):
        end.close()


async def test_a_writer_is_told_that_its_reader_died(kind: str) -> None:
    watched = make_mailbox(kind)
    sender: Sender[OutputMessage] = attach_sender(watched.duplicate(), OutputMessage)
    receiver: Receiver[OutputMessage] = attach_receiver(watched.duplicate(), OutputMessage)
    task = asyncio.create_task(send_for_ever(sender))
    await parked(task)
    watched.mark_gone(writer=False)
    with pytest.raises(Broken, match="mailbox test: no reader is left"):
        await task
    for end in (receiver, sender, watched):
        end.close()


async def test_an_end_that_left_in_good_order_is_not_called_dead(kind: str) -> None:
    watched = make_mailbox(kind)
    sender: Sender[OutputMessage] = attach_sender(watched.duplicate(), OutputMessage)
    receiver: Receiver[OutputMessage] = attach_receiver(watched.duplicate(), OutputMessage)
    sender.close()
    watched.mark_gone(writer=True)
    with pytest.raises(EndOfStream):
        await receiver.receive()
    receiver.close()
    watched.close()


async def test_a_message_that_does_not_decode_breaks_the_mailbox(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        sender.send_nowait(UtilityReply("no number"))  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(Broken, match="mailbox test: a record does not decode"):
                receiver.receive_nowait()
            with pytest.raises(Broken, match="mailbox test: a record does not decode"):
                await receiver.receive()


async def test_the_next_writer_goes_on_after_the_dead_one(kind: str) -> None:
    watched = make_mailbox(kind)
    first: Sender[OutputMessage] = attach_sender(watched.duplicate(), OutputMessage)
    receiver: Receiver[OutputMessage] = attach_receiver(watched.duplicate(), OutputMessage)
    first.send_nowait(note(1))
    watched.mark_gone(writer=True)
    second: Sender[OutputMessage] = attach_sender(watched, OutputMessage, epoch=2)
    second.send_nowait(note(2))
    assert receive_all(receiver) == [note(1), note(2)]
    for end in (first, second, receiver):
        end.close()


async def test_the_next_reader_goes_on_after_the_last_message_taken(kind: str) -> None:
    watched = make_mailbox(kind)
    sender: Sender[OutputMessage] = attach_sender(watched.duplicate(), OutputMessage)
    first: Receiver[OutputMessage] = attach_receiver(watched.duplicate(), OutputMessage)
    for number in range(3):
        sender.send_nowait(note(number))
    assert first.receive_nowait() == note(0)
    watched.mark_gone(writer=False)
    second: Receiver[OutputMessage] = attach_receiver(watched, OutputMessage, epoch=2)
    assert receive_all(second) == [note(1), note(2)]
    for end in (sender, first, second):
        end.close()


async def test_a_reader_waits_for_the_successor_of_a_writer_that_died(kind: str) -> None:
    """It takes what the dead one had sent, and never learns of the death here."""
    handle = make_mailbox(kind)
    receiver: Receiver[OutputMessage] = attach_receiver(handle.duplicate(), OutputMessage)
    dead: Sender[OutputMessage] = attach_sender(handle.duplicate(), OutputMessage)
    dead.send_nowait(note(1))
    handle.mark_gone(writer=True)
    handle.vacate(writer=True)
    assert await receiver.receive() == note(1)
    task = asyncio.create_task(receiver.receive())
    await parked(task)
    successor: Sender[OutputMessage] = attach_sender(handle.duplicate(), OutputMessage, epoch=2)
    successor.send_nowait(note(2))
    assert await task == note(2)
    for end in (receiver, successor, dead, handle):
        end.close()


async def test_a_writer_waits_for_the_successor_of_a_reader_that_died(kind: str) -> None:
    """What the dead one had not taken, the successor gets."""
    handle = make_mailbox(kind)
    sender: Sender[OutputMessage] = attach_sender(handle.duplicate(), OutputMessage)
    dead: Receiver[OutputMessage] = attach_receiver(handle.duplicate(), OutputMessage)
    sender.send_nowait(note(1))
    sender.send_nowait(note(2))
    assert await dead.receive() == note(1)
    handle.vacate(writer=False)
    fill(sender)
    task = asyncio.create_task(sender.send(note(3, 500)))
    await parked(task)
    successor: Receiver[OutputMessage] = attach_receiver(handle.duplicate(), OutputMessage, epoch=2)
    assert await successor.receive() == note(2)
    rest = receive_all(successor)
    await task
    assert (rest + receive_all(successor))[-1] == note(3, 500)
    for end in (sender, successor, dead, handle):
        end.close()


async def test_who_waits_for_a_successor_that_will_not_come_is_told(kind: str) -> None:
    handle = make_mailbox(kind)
    receiver: Receiver[OutputMessage] = attach_receiver(handle.duplicate(), OutputMessage)
    dead: Sender[OutputMessage] = attach_sender(handle.duplicate(), OutputMessage)
    handle.vacate(writer=True)
    task = asyncio.create_task(receiver.receive())
    await parked(task)
    handle.mark_gone(writer=True)
    with pytest.raises(Broken):
        await task
    for end in (receiver, dead, handle):
        end.close()
