"""The timer behind every sleep: it finds an end that became ready without a wake-up, and counts that."""

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from mailboxes import every_kind, joined, note, parked

from ringpost.ipc.parking import wait_any

pytestmark = pytest.mark.usefixtures("no_leaks", "quick_looks")


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringpost.ipc.parking.BACKSTOP_SECONDS", 0.001)


class Scripted:
    """A Parkable that answers as it is told, look by look, and then as it did last."""

    def __init__(self, *answers: bool) -> None:
        self.answers: Iterator[bool] = iter(answers)
        self.answer = False
        self.looks = 0
        self.looked = asyncio.Event()
        self.wake: Callable[[], None] | None = None
        self.on_look: Callable[[int], None] = lambda _: None
        self.lost = 0
        self.waited: list[int] = []

    def arm(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def ready(self) -> bool:
        self.looks += 1
        self.answer = next(self.answers, self.answer)
        self.on_look(self.looks)
        if self.looks == 6:
            self.looked.set()
        return self.answer

    def disarm(self, waited: int) -> None:
        self.wake = None
        self.waited.append(waited)

    def count_lost_wakeup(self) -> None:
        self.lost += 1


@pytest.mark.asyncio
async def test_an_end_that_is_ready_without_a_wake_up_is_found_and_counted_once() -> None:
    silent, other = Scripted(False, False, True), Scripted(False)
    await wait_any([silent, other])
    assert (silent.lost, other.lost) == (1, 0)
    assert silent.looks == 4  # before the sleep, in vain, found, found again
    assert silent.wake is None
    assert silent.waited[0] == other.waited[0] > 0


@pytest.mark.asyncio
async def test_each_sleep_counts_for_itself() -> None:
    silent = Scripted(False, True)
    for sleep in (1, 2, 3):
        silent.answers = iter([False, True])
        await wait_any([silent])
        assert silent.lost == sleep


@pytest.mark.asyncio
async def test_a_wake_up_in_time_counts_nothing() -> None:
    end = Scripted(False)
    task = asyncio.create_task(wait_any([end]))
    await end.looked.wait()
    assert not task.done()
    assert end.wake is not None
    end.wake()
    await task
    assert end.lost == 0


@pytest.mark.asyncio
async def test_a_wake_up_that_comes_just_after_a_look_counts_nothing() -> None:
    """The other side had made the end ready and was about to ring."""
    end = Scripted(False, True)

    def ring_after(looks: int) -> None:
        if looks == 2:
            assert end.wake is not None
            asyncio.get_running_loop().call_soon(end.wake)

    end.on_look = ring_after
    await wait_any([end])
    assert (end.looks, end.lost) == (2, 0)


@pytest.mark.asyncio
async def test_no_look_follows_a_wake_up_in_the_same_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end may have been closed by then, and a closed end cannot be looked at."""
    monkeypatch.setattr("ringpost.ipc.parking.BACKSTOP_SECONDS", 0.02)
    end = Scripted(False)

    def wake_when_the_timer_is_due(looks: int) -> None:
        if looks == 1:
            assert end.wake is not None
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, end.wake)
            loop.call_soon(time.sleep, 0.05)  # keeps the loop until both are due

    end.on_look = wake_when_the_timer_is_due
    await wait_any([end])
    assert (end.looks, end.lost) == (1, 0)


@pytest.mark.asyncio
async def test_an_end_that_flickers_is_not_believed() -> None:
    end = Scripted(False, True, False, True, False, False)
    task = asyncio.create_task(wait_any([end]))
    await end.looked.wait()
    assert end.lost == 0
    assert end.wake is not None
    end.wake()
    await task


@pytest.mark.asyncio
async def test_a_lost_wake_up_of_a_ring_delays_a_message_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with joined() as (sender, receiver):
        task = asyncio.create_task(receiver.receive())
        await parked(task)
        with monkeypatch.context() as patch:
            patch.setattr("ringpost.ipc.ring_writer.ring_doorbell", lambda _: None)
            sender.send_nowait(note(1))
        assert await task == note(1)
        assert receiver.statistics().lost_wakeups == 1
        assert sender.statistics().lost_wakeups == 0


@pytest.mark.asyncio
@every_kind
async def test_looks_at_a_mailbox_that_is_idle_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with joined(kind=kind) as (sender, receiver):
        looked = asyncio.Event()
        looks = 0

        def count() -> bool:
            nonlocal looks
            looks += 1
            if looks == 5:
                looked.set()
            return ready()

        ready = receiver.ready
        monkeypatch.setattr(receiver, "ready", count)
        task = asyncio.create_task(receiver.receive())
        await looked.wait()
        assert not task.done()
        sender.send_nowait(note(1))
        assert await task == note(1)
        assert (receiver.statistics().waits, receiver.statistics().lost_wakeups) == (1, 0)


@pytest.mark.asyncio
@every_kind
async def test_a_reader_that_left_is_no_lost_wake_up_for_the_sender(kind: str) -> None:
    """`ready` says so instead of raising, which no timer could pass on."""
    with joined(kind=kind) as (sender, receiver):
        for number in range(4):
            sender.send_nowait(note(number, 900))
        with pytest.raises(Exception, match="full"):
            sender.send_nowait(note(4, 900))
        task = asyncio.create_task(wait_any([sender]))
        await parked(task)
        receiver.close()
        await task
        assert sender.ready()
        assert sender.statistics().lost_wakeups == 0
