"""One side of a mailbox under stress, in a process that may be killed at any moment: `stress_peer.py SIDE JOB`.

What a side has done lies in a journal in shared memory, which
outlives it: the writer's holds the number of messages whose sending is over, the reader's the runs of numbers it received.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

import msgspec
import uvloop
from stress_messages import Blob, StressMessage, check, message_of

from ringpost.ipc.atomics import Words, words_of
from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.errors import Broken, EndOfStream
from ringpost.ipc.mailbox import Sender
from ringpost.ipc.ring import RingHandle
from ringpost.ipc.segment import map_segment

JOURNAL_BYTES = 1 << 16
SENT, RUNS, DESCRIPTORS, EARLY_KIB, LATE_KIB, FIRST_RUN = 0, 1, 2, 3, 4, 8  # words of a journal
SETTLED = 1000  # messages after which a process has all the memory it needs


class Job(msgspec.Struct):
    ring: RingHandle
    journal: int
    epoch: int
    start: int  # first number to send
    stop: int  # the number after the last
    seed: int


def memory_kib() -> int:
    """What this process alone holds."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1])


def settle(journal: Words, done: int) -> None:
    """Note what the process holds after its first messages, and later on."""
    if done == SETTLED:
        journal[EARLY_KIB] = journal[LATE_KIB] = memory_kib()
        journal[DESCRIPTORS] = len(os.listdir("/proc/self/fd"))
    elif done % 20_000 == 0 and done > SETTLED:
        journal[LATE_KIB] = memory_kib()
        assert journal[DESCRIPTORS] == len(os.listdir("/proc/self/fd"))


async def sent(sender: Sender[StressMessage], message: StressMessage) -> bool:
    """Send it; False when the reader has died."""
    try:
        await sender.send(message)
    except Broken as error:
        if "no reader is left" not in str(error):
            raise
        return False
    return True


async def write(job: Job, journal: Words) -> None:
    chance = random.Random(job.seed)
    sender = attach_sender(job.ring, StressMessage, job.epoch)
    for number in range(job.start, job.stop):
        message = message_of(number)
        while not await sent(sender, message):
            await asyncio.sleep(0.001)  # until the reader has a successor
        if isinstance(message, Blob) and len(message.data):
            message.data.data[:] = bytes(len(message.data))  # it is the sender's again
        journal[SENT] = number + 1
        settle(journal, number - job.start)
        if chance.random() < 0.0005:
            await asyncio.sleep(chance.random() / 500)
    sender.close()


async def read(job: Job, journal: Words) -> None:
    """Receive until the stream ends. The journal's runs are pairs of words: first number, number after the last."""
    chance = random.Random(job.seed)
    receiver = attach_receiver(job.ring, StressMessage, epoch=job.epoch)
    run, due, done = -1, -1, 0
    try:
        while True:
            try:
                message = await receiver.receive()
            except Broken as error:
                if "its writer died" not in str(error):
                    raise
                await asyncio.sleep(0.001)  # until it has a successor
                continue
            check(message)
            if message.number != due:
                run = FIRST_RUN + 2 * journal[RUNS]
                journal[run] = message.number
                due = message.number
            due += 1
            journal[run + 1] = due
            if due == journal[run] + 1:
                journal[RUNS] += 1
            done += 1
            settle(journal, done)
            if chance.random() < 0.0005:
                await asyncio.sleep(chance.random() / 500)
    except EndOfStream:
        receiver.close()


if __name__ == "__main__":
    job = msgspec.json.decode(sys.argv[2], type=Job)
    memory = map_segment(job.journal)
    body = {"write": write, "read": read}[sys.argv[1]]
    uvloop.run(body(job, words_of(memory, JOURNAL_BYTES)))
