"""Waiting: for a signal, for any of several ends, and what is left behind by a wait that ends early."""

import asyncio
import os

import pytest
from mailboxes import joined, note, parked

from ringpost.ipc.doorbell import Doorbell, create_doorbell, ring_doorbell
from ringpost.ipc.parking import Signal, wait_any
from ringpost.ipc.shared_mailbox import SharedReceiver, SharedSender

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.asyncio
async def test_a_set_signal_does_not_wait() -> None:
    signal = Signal()
    signal.set()
    await wait_any([signal])
    await wait_any([signal])  # level-triggered: still set
    signal.clear()
    task = asyncio.create_task(wait_any([signal]))
    await parked(task)
    signal.set()
    await task


@pytest.mark.asyncio
async def test_any_of_several_ends_wakes() -> None:
    with joined() as (sender, receiver), joined() as (other_sender, other):
        signal = Signal()
        for number in range(3):
            task = asyncio.create_task(wait_any([receiver, other, signal]))
            await parked(task)
            if number == 2:
                signal.set()
            else:
                (sender, other_sender)[number].send_nowait(note(number))
            await task
            assert [end.ready() for end in (receiver, other, signal)] == [index == number for index in range(3)]
            if number < 2:
                assert (receiver, other)[number].receive_nowait() == note(number)


@pytest.mark.asyncio
async def test_a_second_task_that_waits_for_a_signal_is_refused() -> None:
    """And the first is woken all the same."""
    signal = Signal()
    task = asyncio.create_task(wait_any([signal]))
    await parked(task)
    with pytest.raises(RuntimeError, match="two tasks wait for one signal"):
        await wait_any([signal])
    signal.set()
    await task


@pytest.mark.asyncio
async def test_a_cancelled_wait_leaves_nothing_armed() -> None:
    with joined() as (sender, receiver):
        signal = Signal()
        task = asyncio.create_task(wait_any([receiver, signal]))
        await parked(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        sender.send_nowait(note(1))
        assert isinstance(receiver, SharedReceiver)
        with pytest.raises(BlockingIOError):  # nobody is parked, so no bell was rung
            os.eventfd_read(receiver._handle.data_bells[0])
        signal.set()
        assert receiver.receive_nowait() == note(1)


@pytest.mark.asyncio
async def test_a_writer_that_finds_a_parked_reader_rings_once_it_published() -> None:
    with joined() as (sender, receiver):
        task = asyncio.create_task(wait_any([receiver]))
        await parked(task)
        sender.send_nowait(note(1))
        await task
        assert receiver.receive_nowait() == note(1)


@pytest.mark.asyncio
async def test_a_sender_whose_message_found_no_room_waits_for_the_room_of_that_message() -> None:
    """A little room is no reason to wake up: the task would go round for ever."""
    with joined() as (sender, receiver):
        assert isinstance(sender, SharedSender)
        assert isinstance(receiver, SharedReceiver)
        while sender._ring.try_write(bytes(900)):
            pass
        with pytest.raises(Exception, match="full"):
            sender.send_nowait(note(1, 1500))
        assert sender._ring.has_room_for(0)
        task = asyncio.create_task(wait_any([sender]))
        await parked(task)
        for _ in range(2):
            receiver._ring.peek()
            receiver._ring.advance()
        await task
        sender.send_nowait(note(1, 1500))


@pytest.mark.asyncio
async def test_a_bell_that_rang_before_anybody_listens_is_heard() -> None:
    fd = create_doorbell()
    ring_doorbell(fd)
    heard = asyncio.Event()
    bell = Doorbell(fd, heard.set)
    bell.listen()
    bell.listen()
    await heard.wait()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)
    bell.close()
    bell.close()
    os.close(fd)


def test_a_bell_can_be_rung_without_end() -> None:
    fd = create_doorbell()
    os.eventfd_write(fd, 2**64 - 2)
    ring_doorbell(fd)
    assert os.eventfd_read(fd) == 2**64 - 2
    os.close(fd)


@pytest.mark.asyncio
async def test_a_closed_bell_is_not_heard_under_a_number_used_again() -> None:
    first = create_doorbell()
    bell = Doorbell(first, lambda: pytest.fail("the closed bell was heard"))
    bell.listen()
    bell.close()
    os.close(first)
    second = create_doorbell()
    assert second == first
    heard = asyncio.Event()
    listener = Doorbell(second, heard.set)
    listener.listen()
    ring_doorbell(second)
    await heard.wait()
    listener.close()
    os.close(second)
