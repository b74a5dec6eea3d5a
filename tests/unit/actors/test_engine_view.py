"""Looks at the actors and mailboxes of an engine, and what two of them tell."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mailboxes import read_all, write_all
from msgspec.structs import replace

from ringpost.actors.engine_finder import Usage, find_engines
from ringpost.actors.engine_look import ActorReading, EngineReading, Look, look
from ringpost.actors.engine_view import EngineView, MailboxView, Report, compare
from ringpost.ipc.board import BoardHandle, BoardWriter, create_board
from ringpost.ipc.messages.load import LoadStats
from ringpost.ipc.messages.status import STATUS_BYTES, ActorStatus
from ringpost.ipc.ring import RingHandle, create_ring
from ringpost.ipc.ring_reader import RingReader
from ringpost.ipc.ring_view import RingReading, SideReading
from ringpost.ipc.ring_writer import RingWriter
from ringpost.ipc.segment import create_segment

CORE = ActorStatus("core0", "engine_core", os.getpid(), os.getpid(), 1, "ready", load=LoadStats(0, 3, 1, 40, 100))
SIDE = SideReading("attached", 1, parked=False, position=0, messages=0, waits=0, wait_seconds=0.0, lost_wakeups=0)


class Stage:
    """A ring with two readers and a board in this process, which is then an engine of one process."""

    def __init__(self) -> None:
        self.ring: RingHandle = create_ring("plans[0]", 4096, 7, readers=2)
        self.board: BoardHandle = create_board("status[core0]", STATUS_BYTES, ActorStatus)
        self.writer = RingWriter(self.ring, 7)
        self.readers = [RingReader(self.ring, 7, slot) for slot in range(2)]
        self.status = BoardWriter(self.board, ActorStatus)

    def close(self) -> None:
        ends: list[RingWriter | RingReader] = [self.writer, *self.readers]
        for end in ends:
            end.close()
            end.unmap()
        self.status.close()
        self.ring.close()
        self.board.close()


@pytest.fixture
def stage(no_leaks: None) -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def own_look() -> Look:
    return look([os.getpid()])


def only(report: Report) -> EngineView:
    (engine,) = report.engines
    return engine


def test_what_is_on_the_board_and_in_the_ring_is_seen(stage: Stage) -> None:
    before = own_look()
    assert not before.engines[0].actors  # nothing is posted yet
    stage.status.post(replace(CORE, steps=5, progress=time.monotonic(), message="StepResult 6", since=time.monotonic()))
    write_all(stage.writer, 100, 100, 100)
    read_all(stage.readers[0])
    engine = only(compare(before, own_look()))
    (actor,), (mailbox,) = engine.actors, engine.mailboxes
    assert (engine.supervisor, engine.pids) == (os.getpid(), [os.getpid()])
    assert (actor.name, actor.kind, actor.pid, actor.alive) == ("core0", "engine_core", os.getpid(), True)
    assert (actor.state, actor.epoch, actor.steps, actor.message, actor.asks) == ("ready", 1, 5, "StepResult 6", "")
    assert (actor.running, actor.waiting, actor.used_blocks, actor.num_blocks) == (3, 1, 40, 100)
    assert actor.message_age is not None
    assert actor.message_age >= 0
    assert actor.steps_per_second is None  # it was not there before
    assert (mailbox.name, mailbox.depth, mailbox.used_bytes, mailbox.capacity_bytes) == ("plans[0]", 3, 3 * 128, 4096)
    assert mailbox.messages_per_second is not None
    assert mailbox.messages_per_second > 0
    assert [reader.messages for reader in mailbox.readers] == [3, 0]
    assert [side.state for side in (mailbox.writer, *mailbox.readers)] == ["attached"] * 3


def test_a_look_writes_nothing(stage: Stage) -> None:
    stage.status.post(CORE)
    write_all(stage.writer, 100)
    held = (stage.ring.memory, stage.board.memory)
    contents = [os.pread(fd, 1 << 16, 0) for fd in held]
    compare(own_look(), own_look())
    assert [os.pread(fd, 1 << 16, 0) for fd in held] == contents


def test_the_actor_of_a_process_that_ended_is_known_by_its_last_words(stage: Stage) -> None:
    """Its number may belong to somebody else by now; what counts is whether that process holds the board."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[stage.board.memory]) as process:
        stage.status.post(replace(CORE, pid=process.pid))
        (alive,) = only(compare(own_look(), own_look())).actors
        assert (alive.alive, alive.cpu_percent) == (True, 0)
        assert alive.rss_bytes
        process.communicate()
    (dead,) = only(compare(own_look(), own_look())).actors
    assert (dead.pid, dead.alive, dead.cpu_percent, dead.rss_bytes) == (process.pid, False, None, None)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as stranger:
        stage.status.post(replace(CORE, pid=stranger.pid))
        (other,) = only(compare(own_look(), own_look())).actors
        assert not other.alive
        stranger.communicate()


def test_an_engine_in_another_process_is_seen_and_then_gone(no_leaks: None) -> None:
    made = Stage()
    made.status.post(CORE)
    held = [made.ring.memory, made.board.memory]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=held) as process:
        made.close()
        seen = look([process.pid])
        assert [engine.pids for engine in seen.engines] == [{process.pid}]
        assert seen.pids == {process.pid}
        (mailbox,) = only(compare(seen, look([process.pid]))).mailboxes
        assert mailbox.writer.state == "closed"
        process.communicate()
        assert look([process.pid]).engines == []


def test_who_ends_between_finding_and_reading_is_left_out(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Stage()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[made.ring.memory, made.board.memory]) as process:
        made.close()
        found = find_engines()
        monkeypatch.setattr("ringpost.actors.engine_look.find_engines", lambda: found)
        assert look([process.pid]).engines
        process.communicate()
    assert look([process.pid]).engines == []


@pytest.mark.parametrize("other", ["ring", "board", "nothing", "another board"])
def test_memory_of_another_kind_is_left_out(stage: Stage, other: str) -> None:
    """Its name says one thing and its bytes another."""
    stage.status.post(CORE)
    handles: dict[str, Callable[[], int]] = {
        "ring": lambda: create_segment("results[0,0]", 8192),
        "board": lambda: create_segment("status[core1]", 8192),
        "nothing": lambda: create_segment("boot:core0", 300),
        "another board": lambda: create_board("status[core1]", STATUS_BYTES, LoadStats).memory,
    }
    fd = handles[other]()
    engine = only(compare(own_look(), own_look()))
    assert [actor.name for actor in engine.actors] == ["core0"]
    assert [mailbox.name for mailbox in engine.mailboxes] == ["plans[0]"]
    os.close(fd)


@given(garbage=st.binary(min_size=1, max_size=400), offset=st.integers(8, 600))
def test_garbage_is_no_crash(garbage: bytes, offset: int) -> None:
    made = Stage()
    made.status.post(CORE)
    os.pwrite(made.ring.memory, garbage, offset)
    os.pwrite(made.board.memory, garbage, offset)
    seen = own_look()
    os.pwrite(made.ring.memory, bytes(len(garbage)), offset)
    for report in (compare(seen, own_look()), compare(own_look(), seen)):
        assert msgspec.json.encode(report)
    made.close()


def view_of(before: RingReading | None, after: RingReading, seconds: float = 2.0) -> MailboxView:
    """What two looks at one ring tell."""
    rings = [None if ring is None else {(1, 1): ("plans[0]", ring)} for ring in (before, after)]
    looks = [Look(at, [EngineReading(frozenset([1]), {}, ring or {})]) for at, ring in zip((0.0, seconds), rings, strict=True)]
    (mailbox,) = only(compare(looks[0], looks[1])).mailboxes
    return mailbox


def ring(writer: SideReading, *readers: SideReading, used: int = 0) -> RingReading:
    return RingReading(4096, used, writer, list(readers))


def test_rates_are_growth_over_time() -> None:
    before = ring(replace(SIDE, messages=10, position=1000), replace(SIDE, messages=10))
    after = ring(replace(SIDE, messages=30, position=5000, wait_seconds=0.5), replace(SIDE, messages=25, wait_seconds=1.5))
    seen = view_of(before, after)
    assert (seen.messages_per_second, seen.bytes_per_second, seen.depth) == (10, 2000, 5)
    assert (seen.writer.wait_share, seen.readers[0].wait_share) == (0.25, 0.75)


def test_without_a_look_before_there_are_no_rates() -> None:
    for seen in (view_of(None, ring(SIDE, SIDE)), view_of(ring(SIDE, SIDE), ring(SIDE, SIDE), seconds=0.0)):
        assert seen.messages_per_second is seen.bytes_per_second is None
        assert seen.writer.wait_share is seen.readers[0].wait_share is None


def test_a_counter_that_began_anew_has_no_rate() -> None:
    assert view_of(ring(replace(SIDE, messages=9), SIDE), ring(SIDE, SIDE)).messages_per_second is None


def test_who_waits_from_one_look_to_the_next_waits_all_the_time() -> None:
    idle = replace(SIDE, parked=True, waits=3, wait_seconds=9.0)
    assert view_of(ring(SIDE, idle), ring(SIDE, idle)).readers[0].wait_share == 1
    long = replace(idle, waits=4, wait_seconds=99.0)  # most of that wait was before the first look
    assert view_of(ring(SIDE, idle), ring(SIDE, long)).readers[0].wait_share == 1
    busy = replace(idle, parked=False)
    assert view_of(ring(SIDE, busy), ring(SIDE, idle)).readers[0].wait_share == 0


@pytest.mark.parametrize(
    ("readers", "depth"),
    [
        ([replace(SIDE, messages=7, position=70), replace(SIDE, messages=4, position=40)], 6),
        ([replace(SIDE, messages=7, position=70), replace(SIDE, messages=4, position=40, state="gone")], 3),
        ([replace(SIDE, messages=4, position=40, state="gone")], 6),
        ([replace(SIDE, messages=2, position=100, epoch=2)], 0),  # it joined late, and has read everything since
        ([replace(SIDE, messages=11, position=110)], 0),  # it read on while the ring was looked at
        ([], 0),
    ],
)
def test_depth_is_what_the_slowest_reader_lacks(readers: list[SideReading], depth: int) -> None:
    after = ring(replace(SIDE, messages=10, position=100), *readers)
    assert view_of(None, after).depth == depth


@pytest.mark.parametrize(("used", "shown"), [(-64, 0), (100, 100), (9999, 4096)])
def test_bytes_in_use_stay_within_the_ring(used: int, shown: int) -> None:
    assert view_of(None, ring(SIDE, SIDE, used=used)).used_bytes == shown


def actor_looks(*readings: ActorReading) -> list[Look]:
    return [
        Look(at, [EngineReading(frozenset([1]), {(1, 1): reading}, {})])
        for at, reading in zip((10.0, 12.0), readings, strict=True)
    ]


def test_rates_of_an_actor() -> None:
    before = ActorReading(replace(CORE, steps=100), Usage(5.0, 1000))
    after = ActorReading(replace(CORE, steps=150, progress=11.5, message="AddRequest", since=11.0), Usage(6.0, 2000))
    (actor,) = only(compare(*actor_looks(before, after))).actors
    assert (actor.steps_per_second, actor.cpu_percent, actor.rss_bytes) == (25, 50, 2000)
    assert (actor.last_step_age, actor.message_age) == (0.5, 1)


def test_hits_are_a_share_of_what_was_looked_up() -> None:
    for load, rate in (
        (LoadStats(0, 3, 1, 40, 100, 7, 1000, 250), 0.25),
        (LoadStats(0, 3, 1, 40, 100, 7, 10, 0), 0),
        (LoadStats(0, 3, 1, 40, 100, 7), None),
    ):
        reading = ActorReading(replace(CORE, load=load), None)
        (actor,) = only(compare(*actor_looks(reading, reading))).actors
        assert (actor.preemptions, actor.prefix_hit_rate) == (7, rate)
    worker = ActorReading(replace(CORE, load=None), None)
    (actor,) = only(compare(*actor_looks(worker, worker))).actors
    assert (actor.preemptions, actor.prefix_hit_rate) == (None, None)


def test_a_successor_has_no_rates_with_its_predecessor() -> None:
    before = ActorReading(replace(CORE, steps=100), Usage(5.0, 1000))
    after = ActorReading(replace(CORE, steps=150, pid=CORE.pid + 1, epoch=2), Usage(6.0, 1000))
    (actor,) = only(compare(*actor_looks(before, after))).actors
    assert (actor.epoch, actor.steps_per_second, actor.cpu_percent) == (2, None, None)


def test_what_is_posted_during_a_look_has_no_negative_age() -> None:
    reading = ActorReading(replace(CORE, steps=1, progress=12.001, message="Abort", since=12.002), None)
    (actor,) = only(compare(*actor_looks(reading, reading))).actors
    assert (actor.last_step_age, actor.message_age) == (0, 0)


def test_actors_are_in_an_order_for_people() -> None:
    names = ["worker0.10", "frontend0", "worker0.9", "core0"]
    actors = {(1, number): ActorReading(replace(CORE, actor=name), None) for number, name in enumerate(names)}
    seen = Look(1.0, [EngineReading(frozenset([1]), actors, {})])
    assert [actor.name for actor in only(compare(seen, seen)).actors] == ["core0", "frontend0", "worker0.9", "worker0.10"]
