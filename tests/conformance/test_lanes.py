"""A mailbox with an urgent lane: one Receiver that takes urgent messages first."""

import asyncio
from collections.abc import Iterator

import pytest
from mailboxes import fill, lane_ends, make_lanes, note, parked

from ringpost.ipc.errors import Broken, Closed, EndOfStream, WouldBlock
from ringpost.ipc.lanes import LaneReceiver, Lanes, LaneSender
from ringpost.ipc.messages.outputs import OutputMessage

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]
Ends = tuple[LaneSender[OutputMessage], LaneReceiver[OutputMessage]]


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = make_lanes(OutputMessage)
    yield made
    made.close()


@pytest.fixture
def ends(lanes: Lanes) -> Iterator[Ends]:
    with lane_ends(lanes, OutputMessage) as both:
        yield both


async def test_an_urgent_message_overtakes_also_when_the_other_lane_is_full(ends: Ends) -> None:
    sender, receiver = ends
    fill(sender.ordered)
    assert sender.send_urgent(note(7))
    assert receiver.receive_nowait() == note(7)
    assert (await receiver.receive()) == note(0, 500)


async def test_a_full_urgent_lane_says_no(ends: Ends) -> None:
    sender, receiver = ends
    count = 0
    while sender.send_urgent(note(count, 500)):
        count += 1
    assert count > 2
    assert [receiver.receive_nowait() for _ in range(count)] == [note(number, 500) for number in range(count)]
    with pytest.raises(WouldBlock):
        receiver.receive_nowait()


@pytest.mark.parametrize("urgent", [True, False])
async def test_either_lane_wakes_the_receiver(ends: Ends, urgent: bool) -> None:
    sender, receiver = ends
    task = asyncio.create_task(receiver.receive())
    await parked(task)
    if urgent:
        assert sender.send_urgent(note(1))
    else:
        await sender.ordered.send(note(1))
    assert await task == note(1)


@pytest.mark.parametrize("died", [True, False])
async def test_everything_in_both_lanes_comes_before_the_end(lanes: Lanes, ends: Ends, died: bool) -> None:
    sender, receiver = ends
    await sender.ordered.send(note(2))
    assert sender.send_urgent(note(1))
    if died:
        lanes.mark_gone(writer=True)
    else:
        sender.close()
    assert [await receiver.receive(), await receiver.receive()] == [note(1), note(2)]
    with pytest.raises(Broken if died else EndOfStream):
        await receiver.receive()


async def test_whoever_waits_at_a_closed_end_is_told(ends: Ends) -> None:
    task = asyncio.create_task(ends[1].receive())
    await parked(task)
    ends[1].close()
    with pytest.raises(Closed):
        await task
