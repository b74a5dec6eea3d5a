"""What `debug_actors` warns of: slow handlers, full mailboxes, actors that ask in a circle; and what it leaves alone."""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress

import pytest
from mailboxes import big, fill, joined, note, parked, receive_all

from ringpost.actors.base import Actor, handles
from ringpost.actors.debug import AskWatch, WatchedSender, watch_handlers, watched
from ringpost.ipc.errors import WouldBlock
from ringpost.ipc.messages.control import Drain, Reattach, Stop, ToActor


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


class Slow(Actor, receives=(ToActor,)):
    """Each handler takes as long as the message says."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @handles(Drain)
    def _on_drain(self, message: Drain) -> None:
        self._clock.now += message.seconds

    @handles(Stop, slow_after=math.inf)
    def _on_stop(self, _: Stop) -> None:
        self._clock.now += 1000

    @handles(Reattach)
    def _on_reattach(self, _: Reattach) -> None:
        self._clock.now += 7
        raise RuntimeError("broken")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


def test_a_handler_over_its_limit_is_reported_with_actor_message_and_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    slow = Slow(clock)
    watch_handlers(slow, "worker0.1", clock)
    slow.dispatch(Drain(0.09))
    slow.dispatch(Stop())
    assert warnings_of(caplog) == []
    slow.dispatch(Drain(0.25))
    assert warnings_of(caplog) == ["worker0.1: its handler of Drain took 250 ms, of at most 100; its other messages waited"]


def test_a_handler_that_fails_is_measured_too_and_fails_as_before(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    slow = Slow(clock)
    watch_handlers(slow, "core0", clock)
    with pytest.raises(RuntimeError, match="broken"):
        slow.dispatch(Reattach("core0", 1))
    assert "Reattach took 7000 ms" in warnings_of(caplog)[0]


def test_only_the_actor_that_is_watched_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watched_one, other = Slow(clock), Slow(clock)
    watch_handlers(watched_one, "core0", clock)
    other.dispatch(Drain(5))
    assert warnings_of(caplog) == []


def test_without_the_option_a_sender_is_what_it_was() -> None:
    with joined() as (sender, _):
        assert watched(sender, on=False) is sender
        assert isinstance(watched(sender, on=True), WatchedSender)


@pytest.mark.asyncio
async def test_a_send_that_waits_for_room_is_reported_when_it_begins_to(caplog: pytest.LogCaptureFixture) -> None:
    with joined() as (sender, receiver):
        watching = watched(sender, on=True)
        await watching.send(note(1))
        await asyncio.sleep(0)
        assert warnings_of(caplog) == []
        receive_all(receiver)
        fill(sender)
        sending = asyncio.create_task(watching.send(note(2)))
        await parked(sending)
        (warning,) = warnings_of(caplog)
        assert warning.startswith("mailbox test is full: UtilityReply finds no room")
        receive_all(receiver)
        await sending
        assert receive_all(receiver) == [note(2)]


@pytest.mark.asyncio
async def test_a_message_that_does_not_wait_is_refused_with_a_warning_at_most_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    with joined() as (sender, _):
        watching = WatchedSender(sender, clock)
        fill(sender)
        for moment in (0.0, 0.5, 0.9, 1.0, 1.5):
            clock.now = 5 + moment
            with pytest.raises(WouldBlock):
                watching.send_nowait(note(1))
        times = [warning.partition("(")[2].partition(" ")[0] for warning in warnings_of(caplog)]
        assert times == ["1", "3"]


@pytest.mark.asyncio
async def test_a_cancelled_send_is_cancelled_at_the_sender_too() -> None:
    with joined() as (sender, receiver):
        watching = watched(sender, on=True)
        sending = asyncio.create_task(watching.send(big(1)))
        await parked(sending)
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
        await_second = asyncio.create_task(watching.send(note(2)))
        assert await receiver.receive() == note(2)
        await await_second


@pytest.mark.asyncio
async def test_a_watched_sender_is_its_mailbox_in_everything_else() -> None:
    with joined() as (sender, receiver):
        watching = watched(sender, on=True)
        watching.send_nowait(note(1))
        assert receive_all(receiver) == [note(1)]
        assert (watching.name, watching.largest_nowait) == (sender.name, sender.largest_nowait)
        assert watching.ready() == sender.ready()
        assert watching.statistics() == sender.statistics()
        assert watching.statistics().messages == 1
        watching.close()
        with pytest.raises(Exception, match="closed"):
            sender.send_nowait(note(2))


def ask_watch(actor: str, board: dict[str, str]) -> AskWatch:
    """A watch of an actor whose status, and that of all the others, is a line of `board`."""
    post: Callable[[str], None] = lambda peer: board.update({actor: peer})  # noqa: E731
    return AskWatch(actor, post, lambda name: board.get(name, ""))


def test_whom_an_actor_asks_is_posted_as_long_as_it_waits() -> None:
    board: dict[str, str] = {}
    watch = ask_watch("frontend0", board)
    with watch("core0"):
        assert board == {"frontend0": "core0"}
        with watch("core1"):
            assert board == {"frontend0": "core1"}
        assert board == {"frontend0": "core0"}
    assert board == {"frontend0": ""}
    with suppress(RuntimeError), watch("core0"):
        raise RuntimeError
    assert board == {"frontend0": ""}


def test_of_two_questions_at_once_the_one_that_still_waits_stays_posted() -> None:
    board: dict[str, str] = {}
    watch = ask_watch("frontend0", board)
    first, second = watch("core0"), watch("core1")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert board == {"frontend0": "core1"}
    second.__exit__(None, None, None)
    assert board == {"frontend0": ""}


def test_a_circle_is_reported_with_all_its_members(caplog: pytest.LogCaptureFixture) -> None:
    board = {"core0": "worker0.0", "worker0.0": "frontend0"}
    with ask_watch("frontend0", board)("core0"):
        pass
    assert warnings_of(caplog) == [
        "actors ask in a circle, so perhaps none gets an answer: frontend0 -> core0 -> worker0.0 -> frontend0"
    ]


@pytest.mark.parametrize("board", [{}, {"core0": "worker0.0"}, {"core0": "worker0.0", "worker0.0": "core0"}])
def test_a_chain_that_does_not_come_back_is_no_circle(board: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    with ask_watch("frontend0", board)("core0"):
        assert board["frontend0"] == "core0"
    assert warnings_of(caplog) == []
