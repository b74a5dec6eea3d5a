"""A mailbox whose two sides pause at random and are killed at random: nothing lost but what a dead reader had in hand."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from stress_messages import CAPACITY, StressMessage
from stress_peer import (
    DESCRIPTORS,
    EARLY_KIB,
    FIRST_RUN,
    JOURNAL_BYTES,
    LATE_KIB,
    RUNS,
    SENT,
    Job,
)

from ringpost.ipc.atomics import Words, words_of
from ringpost.ipc.codec import fingerprint_of
from ringpost.ipc.ring import RingHandle, create_ring
from ringpost.ipc.ring_view import RingView
from ringpost.ipc.segment import create_segment, map_segment

PEER = Path(__file__).parent.parent / "support" / "stress_peer.py"
GROWTH_KIB = 8 << 10  # of a process between its first thousand messages and its last; garbage that waits for collection
GUARD_SECONDS = 280


class Side:
    """One side of the mailbox: its journal, and the process that has it now."""

    def __init__(self, name: str, ring: RingHandle, total: int, chance: random.Random) -> None:
        self.name = name
        self._ring, self._total, self._chance = ring, total, chance
        self._journal = create_segment(f"journal:{name}", JOURNAL_BYTES)
        self._memory = map_segment(self._journal)
        self.words: Words = words_of(self._memory, JOURNAL_BYTES)
        self._epoch = 0
        self.deaths = 0

    def start(self, at: int = 0) -> None:
        self._epoch += 1
        job = Job(self._ring, self._journal, self._epoch, at, self._total, self._chance.randrange(1 << 30))
        fds = [*self._ring.descriptors(), self._journal]
        command = [sys.executable, "-P", str(PEER), self.name, msgspec.json.encode(job).decode()]
        self.process = subprocess.Popen(command, pass_fds=fds, env=os.environ | {"PYTHONPATH": str(PEER.parent)})

    def kill(self) -> bool:
        """Kill the process and do what a supervisor does; False when it had ended by itself."""
        self.process.kill()
        if self.process.wait() == 0:
            return False
        self.deaths += 1
        self._ring.mark_gone(writer=self.name == "write")
        return True

    def received(self) -> Iterator[tuple[int, int]]:
        """The runs of numbers that the reader received, as pairs like those of `range`."""
        for run in range(self.words[RUNS]):
            yield self.words[FIRST_RUN + 2 * run], self.words[FIRST_RUN + 2 * run + 1]

    def close(self) -> None:
        with suppress(AttributeError):
            self.process.kill()
            self.process.wait()
        self.words.release()
        self._memory.close()
        os.close(self._journal)


def wait_until_sent(writer: Side, number: int, guard: float) -> None:
    """Until so many messages have gone out, or the writer is through. Polls: the journal rings no bell."""
    while writer.words[SENT] < number and writer.process.poll() is None:
        assert time.monotonic() < guard, f"{writer.words[SENT]} messages sent, and no more"
        with suppress(subprocess.TimeoutExpired):
            writer.process.wait(0.001)


def stress(total: int, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    ring = create_ring("stress", CAPACITY, fingerprint_of(StressMessage))
    writer, reader = (Side(name, ring, total, chance) for name in ("write", "read"))
    guard = time.monotonic() + GUARD_SECONDS
    in_doubt: set[int] = set()  # were perhaps published when their writer died
    try:
        reader.start()
        writer.start()
        for at in sorted(chance.sample(range(total - 10_000), kills)):  # the last lives are long enough to be measured
            wait_until_sent(writer, at, guard)
            if chance.random() < 0.5:
                if not writer.kill():
                    break
                in_doubt.add(writer.words[SENT])
                writer.start(writer.words[SENT] + 1)
            else:
                assert reader.kill()
                reader.start()
        assert writer.process.wait(timeout=max(1, guard - time.monotonic())) == 0
        assert reader.process.wait(timeout=max(1, guard - time.monotonic())) == 0
        check_runs(list(reader.received()), total, in_doubt, reader.deaths)
        check_possessions(writer, reader)
        view = RingView(ring.memory)
        reading = view.read()
        view.close()
        assert (reading.writer.lost_wakeups, reading.readers[0].lost_wakeups) == (0, 0)
        assert reading.writer.waits > 0
        assert reading.readers[0].waits > 0
        assert writer.deaths + reader.deaths == kills
    finally:
        writer.close()
        reader.close()
        ring.close()


def check_runs(runs: list[tuple[int, int]], total: int, in_doubt: set[int], reader_deaths: int) -> None:
    """In order, none twice, none lost but one in hand for each reader that died."""
    assert runs == sorted(runs)
    missing: list[int] = []
    due = 0
    for first, after in runs:
        assert first >= due, f"{first} comes again or too late: {due} was due"
        missing += range(due, first)
        due = after
    missing += range(due, total)
    lost = [number for number in missing if number not in in_doubt]
    assert len(lost) <= reader_deaths, f"{len(lost)} lost with {reader_deaths} deaths of the reader: {lost[:20]}"


def check_possessions(*sides: Side) -> None:
    """The last process of each side holds no more at the end than after a thousand messages."""
    for side in sides:
        early, late = side.words[EARLY_KIB], side.words[LATE_KIB]
        assert early > 0
        assert late < early + GROWTH_KIB, f"{side.name}: from {early} to {late} KiB"
        assert 0 < side.words[DESCRIPTORS] < 20


def test_kills_and_pauses_lose_and_repeat_nothing(no_leaks: None) -> None:
    stress(total=50_000, kills=5, seed=random.randrange(1 << 30))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(8))
def test_two_million_messages_with_kills_and_pauses(part: int, no_leaks: None) -> None:
    stress(total=250_000, kills=12, seed=random.randrange(1 << 30))
