"""What an onlooker sees of a ring, and that nobody notices that one looks."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
from mailboxes import make_ring, note, parked

from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.errors import SchemaMismatch
from ringpost.ipc.layout import PAGE
from ringpost.ipc.messages.outputs import OutputMessage
from ringpost.ipc.ring import RingHandle
from ringpost.ipc.ring_view import RingView, SideReading
from ringpost.ipc.segment import create_segment

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def handle() -> Iterator[RingHandle]:
    handle = make_ring(readers=2)
    yield handle
    handle.close()


@pytest.fixture
def view(handle: RingHandle) -> Iterator[RingView]:
    view = RingView(handle.memory)
    yield view
    view.close()


def test_a_ring_that_nobody_has_attached_to(view: RingView) -> None:
    free = SideReading("free", 0, False, 0, 0, 0, 0.0, 0)
    reading = view.read()
    assert (reading.capacity, reading.used) == (4096, 0)
    assert reading.writer == free
    assert reading.readers == [free, free]


def test_both_sides_as_they_say_themselves(handle: RingHandle, view: RingView) -> None:
    sender = attach_sender(handle.duplicate(), OutputMessage, epoch=3)
    receivers = [attach_receiver(handle.duplicate(), OutputMessage, slot, epoch=4 + slot) for slot in (0, 1)]
    for number in range(5):
        sender.send_nowait(note(number, 50))
    for _ in range(3):
        receivers[0].receive_nowait()
    reading = view.read()
    assert (reading.writer.state, reading.writer.epoch, reading.writer.parked) == ("attached", 3, False)
    assert [(side.state, side.epoch) for side in reading.readers] == [("attached", 4), ("attached", 5)]
    ends: list[Any] = [sender, *receivers]
    for end, side in zip(ends, [reading.writer, *reading.readers], strict=True):
        own = end.statistics()
        assert (side.messages, side.position, side.waits, side.lost_wakeups) == (own.messages, own.bytes, 0, 0)
    assert reading.used == reading.writer.position > 250
    for end in ends:
        end.close()


@pytest.mark.asyncio
async def test_a_reader_that_waits_and_has_waited(handle: RingHandle, view: RingView) -> None:
    sender = attach_sender(handle.duplicate(), OutputMessage)
    receiver = attach_receiver(handle.duplicate(), OutputMessage)
    task = asyncio.create_task(receiver.receive())
    await parked(task)
    assert view.read().readers[0].parked
    assert not view.read().writer.parked
    sender.send_nowait(note(1))
    await task
    side = view.read().readers[0]
    assert (side.parked, side.waits) == (False, 1)
    assert side.wait_seconds == receiver.statistics().wait_seconds > 0
    sender.close()
    receiver.close()


def test_what_a_slot_that_left_has_not_read_is_not_in_use(handle: RingHandle, view: RingView) -> None:
    sender = attach_sender(handle.duplicate(), OutputMessage)
    quick, slow = (attach_receiver(handle.duplicate(), OutputMessage, slot) for slot in (0, 1))
    sender.send_nowait(note(1))
    quick.receive_nowait()
    assert view.read().used > 0
    slow.close()
    assert view.read().used == 0
    handle.mark_gone(writer=False, slot=0)
    handle.mark_gone(writer=True)
    assert view.read().writer.state == "gone"
    assert [side.state for side in view.read().readers] == ["gone", "closed"]
    assert view.read().used == 0
    sender.close()
    quick.close()


def test_a_descriptor_in_proc_serves_as_well(handle: RingHandle) -> None:
    fd = os.open(f"/proc/{os.getpid()}/fd/{handle.memory}", os.O_RDONLY)
    view = RingView(fd)
    os.close(fd)
    assert view.read().capacity == 4096
    view.close()


@pytest.mark.parametrize("size", [1, 8, 31, 40, PAGE])
def test_memory_that_is_no_ring_is_refused(size: int) -> None:
    fd = create_segment("test", size)
    with pytest.raises(SchemaMismatch, match="not a ring of this version"):
        RingView(fd)
    os.close(fd)
