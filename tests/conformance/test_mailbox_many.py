"""Several messages in one call, for every kind of mailbox: the same messages as one by one."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mailboxes import Parcel, every_kind, fill, joined, note, parked

from ringpost.ipc.errors import Broken, Closed, EndOfStream, WouldBlock
from ringpost.ipc.mailbox import Receiver
from ringpost.ipc.messages.payload import Payload

pytestmark = [pytest.mark.usefixtures("no_leaks"), every_kind]

steps = st.lists(st.one_of(st.tuples(st.just("send"), st.integers(0, 900)), st.tuples(st.just("take"), st.integers(1, 7))))


def take(receiver: Receiver[Any], limit: int) -> Sequence[Any]:
    try:
        return receiver.receive_many_nowait(limit)
    except WouldBlock:
        return []


def same(left: Parcel, right: Parcel) -> bool:
    return left.number == right.number and [bytes(p.data) for p in left.contents] == [bytes(p.data) for p in right.contents]


@given(steps=steps)
def test_messages_taken_together_are_those_that_were_sent(kind: str, steps: list[tuple[str, int]]) -> None:
    with joined(union=Parcel, kind=kind) as (sender, receiver):
        sent: deque[Parcel] = deque()
        for number, (step, size) in enumerate(steps):
            if step == "send":
                parcel = Parcel(number, [Payload(bytes([number % 256]) * size)] if size % 3 == 0 else [])
                try:
                    sender.send_nowait(parcel)
                except WouldBlock:
                    continue
                sent.append(parcel)
            else:
                taken = take(receiver, size)
                assert bool(sent) <= len(taken) <= size
                assert all(same(parcel, sent.popleft()) for parcel in taken)
        while taken := take(receiver, 5):
            assert all(same(parcel, sent.popleft()) for parcel in taken)
        assert not sent


@pytest.mark.asyncio
async def test_a_message_in_fragments_comes_between_its_neighbours(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        messages = [note(0), note(1), note(2, 9000), note(3)]

        async def send_all() -> None:
            for message in messages:
                await sender.send(message)

        sending = asyncio.create_task(send_all())
        taken: list[Any] = []
        while len(taken) < len(messages):
            taken.append(await receiver.receive())
            taken += take(receiver, 8)
        await sending
        assert taken == messages


@pytest.mark.asyncio
async def test_taking_several_gives_room_back(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        fill(sender)
        waiting = asyncio.create_task(sender.send(note(1, 300)))
        await parked(waiting)
        count = sender.statistics().messages
        taken = list(take(receiver, 1000))
        await waiting
        while len(taken) <= count:
            taken += receiver.receive_many_nowait(1000)
        assert taken[-1] == note(1, 300)
        assert receiver.statistics().messages == sender.statistics().messages == len(taken)


def test_the_end_comes_after_the_messages_before_it(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        for number in range(3):
            sender.send_nowait(note(number))
        sender.close()
        assert receiver.receive_nowait() == note(0)
        assert receiver.receive_many_nowait(9) == [note(1), note(2)]
        with pytest.raises(EndOfStream):
            receiver.receive_many_nowait(9)
        receiver.close()
        with pytest.raises(Closed):
            receiver.receive_many_nowait(9)


def test_what_does_not_decode_is_told_after_the_messages_before_it(kind: str) -> None:
    with joined(kind=kind) as (sender, receiver):
        sender.send_nowait(note(0))
        sender.send_nowait(note(1))
        sender._codec.encode = lambda message: b"\xc1"  # type: ignore[attr-defined]  # no message begins so
        sender.send_nowait(note(2))
        assert receiver.receive_nowait() == note(0)
        assert receiver.receive_many_nowait(9) == [note(1)]
        for _ in range(2):
            with pytest.raises(Broken, match="mailbox test: a record does not decode"):
                receiver.receive_many_nowait(9)
