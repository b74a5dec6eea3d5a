"""What an actor posts of itself: the states of its life, the message in hand, what it has finished."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringpost.actors.status import StatusBlock, message_name, own_status
from ringpost.ipc.board import BoardHandle, BoardReader, create_board
from ringpost.ipc.errors import Closed
from ringpost.ipc.messages.control import Stop
from ringpost.ipc.messages.load import LoadStats
from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.results import StepResult
from ringpost.ipc.messages.status import STATUS_BYTES, ActorStatus, State

ORDER = ["starting", "ready", "draining", "stopping", "failed"]
STATES: tuple[State, ...] = get_args(State)
LOAD = LoadStats(0, 1, 2, 3, 4)


@pytest.fixture
def board(no_leaks: None) -> Iterator[BoardHandle]:
    handle = create_board("status[core0]", STATUS_BYTES, ActorStatus)
    yield handle
    handle.close()


def block(posted: list[ActorStatus]) -> StatusBlock:
    return StatusBlock(posted.append, actor="core0", kind="engine_core", supervisor=5, epoch=2)


def test_who_it_is_is_posted_at_once() -> None:
    posted: list[ActorStatus] = []
    block(posted)
    assert posted == [ActorStatus("core0", "engine_core", os.getpid(), 5, 2, "starting")]


def test_a_message_in_hand_and_its_end() -> None:
    posted: list[ActorStatus] = []
    status = block(posted)
    before = time.monotonic()
    status.taking("StepPlan 17")
    taken = posted[-1]
    assert (taken.message, taken.steps, taken.progress) == ("StepPlan 17", 0, 0.0)
    status.done(load=LOAD)
    done = posted[-1]
    assert (done.message, done.since, done.steps, done.load) == ("", 0.0, 1, LOAD)
    assert before <= taken.since <= done.progress <= time.monotonic()
    status.done(steps=0)
    assert (posted[-1].steps, posted[-1].load) == (1, LOAD)
    assert posted[-1].progress >= done.progress
    assert len(posted) == 4


def test_whose_answer_it_waits_for() -> None:
    posted: list[ActorStatus] = []
    status = block(posted)
    status.asking("worker0.0")
    status.taking("Stop")
    assert (posted[-1].asks, posted[-1].message) == ("worker0.0", "Stop")
    status.asking("")
    assert (posted[-1].asks, posted[-1].message) == ("", "Stop")


@given(st.lists(st.sampled_from(STATES), max_size=6))
def test_states_follow_the_table(states: list[State]) -> None:
    """Only forwards; a drain belongs to one that was ready; from every other state it may stop or fail."""
    posted: list[ActorStatus] = []
    status = block(posted)
    for new in states:
        before = status.now.state
        forwards = ORDER.index(new) > ORDER.index(before)
        if forwards and (new != "draining" or before == "ready"):
            status.state(new)
        else:
            with pytest.raises(AssertionError, match=f"core0: {before} -> {new}"):
                status.state(new)
    assert all(ORDER.index(one.state) < ORDER.index(other.state) for one, other in pairwise(posted))


def test_names_of_messages() -> None:
    assert message_name(StepPlan(17, [], [], [], [], [], [])) == "StepPlan 17"
    assert message_name(StepResult(0, [], [])) == "StepResult 0"
    assert message_name(Stop()) == "Stop"


@pytest.mark.parametrize(
    ("end", "state"),
    [(None, "stopping"), (KeyboardInterrupt(), "stopping"), (GeneratorExit(), "stopping"), (OSError(), "failed")],
)
def test_the_status_of_one_that_supervises_itself(board: BoardHandle, end: BaseException | None, state: str) -> None:
    reader = BoardReader(board, ActorStatus)
    with suppress(KeyboardInterrupt, GeneratorExit, OSError), own_status(board, "frontend0", "frontend") as status:
        assert reader.read() == ActorStatus("frontend0", "frontend", os.getpid(), os.getpid(), 1, "starting")
        status.state("ready")
        if end is not None:
            raise end
    last = reader.read()
    assert last is not None
    assert last.state == state
    with pytest.raises(Closed):
        status.done()
    reader.close()


def test_the_longest_status_fits_its_board(board: BoardHandle) -> None:
    with own_status(board, "worker1000000.1000000", "engine_core") as status:
        status.asking("worker1000000.1000000")
        status.done(2**62, LoadStats(*[2**62] * 5))
        status.taking(f"{'A' * 100} {2**62}")
        reader = BoardReader(board, ActorStatus)
        assert reader.read() == status.now
        reader.close()
