"""How a message larger than half a ring lies there: fragments, and the word that takes back what was cancelled."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mailboxes import Parcel, big, make_ring, note, parked

from ringpost.ipc.attach import attach_sender
from ringpost.ipc.layout import DATA, DISCARD, FIRST_FRAGMENT, FRAGMENT, KIND_MASK, LAST_FRAGMENT
from ringpost.ipc.mailbox import Sender
from ringpost.ipc.messages.outputs import OutputMessage
from ringpost.ipc.messages.payload import Payload
from ringpost.ipc.ring_reader import RingReader
from ringpost.ipc.shared_mailbox import SharedReceiver

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


@contextmanager
def sender_and_spy(
    monkeypatch: pytest.MonkeyPatch, union: Any = OutputMessage
) -> Iterator[tuple[Sender[Any], SharedReceiver[Any], list[tuple[int, int]]]]:
    """Both ends, and kind and payload bytes of each record that the receiver has looked at."""
    seen: dict[int, tuple[int, int]] = {}  # by place: a record may be looked at twice
    record = RingReader._record

    def spy(reader: RingReader) -> tuple[slice, int]:
        payload, kind = record(reader)
        seen[reader.position] = kind & KIND_MASK, payload.stop - payload.start
        kinds[:] = seen.values()
        return payload, kind

    kinds: list[tuple[int, int]] = []
    monkeypatch.setattr(RingReader, "_record", spy)
    handle = make_ring(union=union)
    receiver: SharedReceiver[Any] = SharedReceiver(handle.duplicate(), union)
    sender: Sender[Any] = attach_sender(handle, union)
    try:
        yield sender, receiver, kinds
    finally:
        sender.close()
        receiver.close()


async def test_a_large_message_crosses_in_quarters_of_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    with sender_and_spy(monkeypatch) as (sender, receiver, records):
        task = asyncio.create_task(sender.send(big(1)))
        await parked(task)  # the ring does not hold it
        assert await receiver.receive() == big(1)
        await task
        fragments = [record for record in records if record[0] in (FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT)]
        kinds, sizes = zip(*fragments, strict=True)
        assert kinds[0] == FIRST_FRAGMENT
        assert kinds[-1] == LAST_FRAGMENT
        assert set(kinds[1:-1]) == {FRAGMENT}
        assert set(sizes[:-1]) == {1024}
        assert 0 < sizes[-1] <= 1024


async def test_payloads_are_cut_where_the_fragment_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with sender_and_spy(monkeypatch, Parcel) as (sender, receiver, records):
        message = Parcel(1, [Payload(bytes([number]) * 700) for number in range(5)])
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sender.send(message))
            assert await receiver.receive() == message
        assert [size for _, size in records[:-1]] == [1024] * (len(records) - 1)
        assert len(records) == 4


@pytest.mark.parametrize("received", [0, 1, 3])
async def test_what_was_cancelled_midway_is_taken_back(monkeypatch: pytest.MonkeyPatch, received: int) -> None:
    with sender_and_spy(monkeypatch) as (sender, receiver, records):
        task = asyncio.create_task(sender.send(big(1)))
        await parked(task)
        waiting = asyncio.create_task(receiver.receive())
        for _ in range(received):  # the two ends take turns
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await sender.send(note(3))
        sender.send_nowait(note(4))
        assert await waiting == note(3)
        assert await receiver.receive() == note(4)
        kinds = [kind for kind, _ in records]
        assert kinds[0] == FIRST_FRAGMENT
        assert LAST_FRAGMENT not in kinds
        assert kinds[kinds.index(DISCARD) :][:2] == [DISCARD, DATA]


async def test_what_was_cancelled_before_its_first_fragment_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with sender_and_spy(monkeypatch) as (sender, receiver, records):
        for number in range(4):
            sender.send_nowait(note(number, 900))
        task = asyncio.create_task(sender.send(big(1)))
        await parked(task)
        task.cancel()
        assert [await receiver.receive() for _ in range(4)] == [note(number, 900) for number in range(4)]
        await sender.send(note(4))
        assert await receiver.receive() == note(4)
        assert not {DISCARD, FIRST_FRAGMENT} & {kind for kind, _ in records}
        assert task.cancelled()
