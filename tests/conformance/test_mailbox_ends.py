"""How a stream ends, on either side, and who is told."""

import asyncio
from typing import Any

import pytest
from mailboxes import fill, joined, make_ring, note, parked

from ringpost.ipc.errors import Broken, Closed, EndOfStream
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.outputs import OutputMessage
from ringpost.ipc.ring import mark_gone

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


async def test_a_closed_writer_ends_the_stream_after_its_last_message() -> None:
    with joined() as (sender, receiver):
        await sender.send(note(1))
        sender.close()
        sender.close()
        assert await receiver.receive() == note(1)
        for _ in range(2):
            with pytest.raises(EndOfStream, match="mailbox test"):
                await receiver.receive()


async def test_the_end_wakes_a_waiting_reader() -> None:
    with joined() as (sender, receiver):
        task = asyncio.create_task(receiver.receive())
        await parked(task)
        sender.close()
        with pytest.raises(EndOfStream):
            await task


async def test_closing_the_sender_wakes_its_own_waiter() -> None:
    with joined() as (sender, _receiver):
        fill(sender)
        tasks = [asyncio.create_task(sender.send(note(number, 300))) for number in (1, 2)]
        await parked(*tasks)
        sender.close()
        for task in tasks:
            with pytest.raises(Closed, match="mailbox test"):
                await task


async def test_closing_the_receiver_wakes_its_own_waiter() -> None:
    with joined() as (_sender, receiver):
        task = asyncio.create_task(receiver.receive())
        await parked(task)
        receiver.close()
        with pytest.raises(Closed, match="mailbox test"):
            await task


async def test_a_closed_end_used_again() -> None:
    with joined() as (sender, receiver):
        sender.close()
        receiver.close()
        with pytest.raises(Closed):
            sender.send_nowait(note(1))
        with pytest.raises(Closed):
            await sender.send(note(1))
        with pytest.raises(Closed):
            receiver.receive_nowait()
        with pytest.raises(Closed):
            await receiver.receive()


async def test_a_writer_whose_reader_left_is_told_when_the_room_is_used_up() -> None:
    with joined() as (sender, receiver):
        task = asyncio.create_task(send_for_ever(sender))
        await parked(task)
        receiver.close()
        with pytest.raises(Broken, match="mailbox test: no reader is left"):
            await task


async def send_for_ever(sender: Sender[Any]) -> None:
    while True:
        await sender.send(note(1))


async def test_a_reader_is_told_that_its_writer_died() -> None:
    handle = make_ring()
    watched = handle.duplicate()
    sender: Sender[OutputMessage] = Sender(handle, OutputMessage)
    receiver: Receiver[OutputMessage] = Receiver(handle.duplicate(), OutputMessage)
    sender.send_nowait(note(1))
    assert await receiver.receive() == note(1)
    task = asyncio.create_task(receiver.receive())
    await parked(task)
    mark_gone(watched, writer=True)
    with pytest.raises(Broken, match="its writer died"):
        await task
    for end in (receiver, sender, watched):
        end.close()
