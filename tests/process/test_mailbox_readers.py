"""A broadcast to processes that are slow, stopped or killed; and bytes that cross between two cores."""

import asyncio
import os
import random
import signal
import time
import zlib

import pytest
from mailboxes import make_ring, note, peer
from stress_messages import NOISE, Blob, StressMessage

from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.outputs import OutputMessage, UtilityReply
from ringpost.ipc.messages.payload import Payload
from ringpost.ipc.ring_view import RingView

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]
COUNT = 500
MOMENT = 0.3  # seconds in which a task that does not wait would use much of a core


async def test_every_live_reader_gets_everything_and_a_dead_one_holds_nobody_up() -> None:
    ring, backs = make_ring(readers=3), [make_ring() for _ in range(3)]
    sender: Sender[OutputMessage] = attach_sender(ring.duplicate(), OutputMessage)
    view = RingView(ring.memory)
    reports: list[Receiver[OutputMessage]] = [attach_receiver(back.duplicate(), OutputMessage) for back in backs]

    async def send_all() -> None:
        for number in range(COUNT):
            await sender.send(note(number, number % 97))
        sender.close()

    async with (
        peer("drain", ring, backs[0], slot=0),
        peer("drain", ring, backs[1], slot=1, pause_ms=2),
        peer("drain", ring, backs[2], slot=2, exit_code=-9) as doomed,
    ):
        for number in range(3):
            assert await reports[number].receive() == UtilityReply(-1)  # it is attached
        doomed.send_signal(signal.SIGSTOP)
        sending = asyncio.create_task(send_all())
        while not view.read().writer.parked:
            await asyncio.sleep(0)
        used = time.process_time()
        done, _ = await asyncio.wait([sending], timeout=MOMENT)
        assert not done, "nobody reads in slot 2"
        assert time.process_time() - used < MOMENT / 3
        doomed.kill()
        await doomed.wait()
        ring.mark_gone(writer=False, slot=2)
        await sending
        assert [await report.receive() for report in reports[:2]] == [UtilityReply(COUNT)] * 2
    view.close()
    for report in reports:
        report.close()
    for handle in (ring, *backs):
        handle.close()


@pytest.mark.parametrize("count", [2_000, pytest.param(200_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
async def test_bytes_between_two_cores_are_never_torn(count: int) -> None:
    """The sender uses its buffer again at once; what was received stays as it was."""
    there, back = make_ring(1 << 16, union=StressMessage), make_ring(1 << 16, union=StressMessage)
    sender: Sender[StressMessage] = attach_sender(there.duplicate(), StressMessage)
    receiver: Receiver[StressMessage] = attach_receiver(back.duplicate(), StressMessage)
    largest = 1 << 14
    chance = random.Random(3)
    buffer = bytearray(largest)
    kept: list[Blob] = []

    async def send_all() -> None:
        for number in range(count):
            size = chance.choice((0, 1, largest - 1, largest, chance.randrange(largest)))
            start = chance.randrange(len(NOISE) - largest)
            buffer[:size] = NOISE[start : start + size]
            view = memoryview(buffer)[:size]
            await sender.send(Blob(number, zlib.crc32(view), Payload(view)))
        sender.close()

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    try:
        async with peer("echo_blobs", there, back, core=cores[-1]), asyncio.TaskGroup() as tasks:
            tasks.create_task(send_all())
            for number in range(count):
                message = await receiver.receive()
                assert isinstance(message, Blob)
                assert (message.number, zlib.crc32(message.data.data)) == (number, message.checksum)
                if number % (count // 50) == 0:
                    kept.append(message)
    finally:
        os.sched_setaffinity(0, cores)
    receiver.close()
    assert all(zlib.crc32(blob.data.data) == blob.checksum for blob in kept)
    there.close()
    back.close()
