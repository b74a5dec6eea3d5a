"""Mailboxes in a thread that blocks: with and without an event loop there, in time and too late, and what cannot work."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from mailboxes import joined, note

from ringpost.ipc.blocking import BlockingLoop, TimeLimit, blocking_loop, in_thread, time_limit
from ringpost.ipc.doorbell import Doorbell, create_doorbell, ring_doorbell
from ringpost.ipc.errors import EndOfStream
from ringpost.ipc.parking import Gate, Signal, wait_any
from ringpost.ipc.shared_mailbox import SharedReceiver

pytestmark = pytest.mark.usefixtures("no_leaks")

LONG = 60.0  # seconds that only a hung test waits


def in_another_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_messages_cross_in_order_when_both_sides_block() -> None:
    """The ring is smaller than what crosses: each side has to wait for the other."""
    count = 300

    async def send_all() -> None:
        for number in range(count):
            await sender.send(note(number, 900))

    async def receive_all() -> list[object]:
        return [await receiver.receive() for _ in range(count)]

    with joined() as (sender, receiver):
        thread = in_another_thread(lambda: BlockingLoop().run(send_all()))
        assert BlockingLoop().run(receive_all()) == [note(number, 900) for number in range(count)]
        thread.join()
        assert receiver.statistics().waits > 0
        assert receiver.statistics().lost_wakeups == 0


def test_a_message_of_several_fragments_crosses() -> None:
    with joined() as (sender, receiver):
        thread = in_another_thread(lambda: BlockingLoop().run(sender.send(note(1, 20_000))))
        assert BlockingLoop().run(receiver.receive()) == note(1, 20_000)
        thread.join()


@pytest.mark.asyncio
async def test_a_loop_that_runs_in_the_thread_does_not_matter() -> None:
    """As in a notebook. Its tasks stand still meanwhile, and go on afterwards."""
    with joined() as (sender, receiver):
        turned = asyncio.create_task(asyncio.sleep(0))
        thread = in_another_thread(lambda: BlockingLoop().run(sender.send(note(1))))
        assert BlockingLoop().run(receiver.receive()) == note(1)
        assert not turned.done()
        assert blocking_loop() is None
        await turned
        thread.join()


def test_the_end_of_the_other_side_wakes() -> None:
    with joined() as (sender, receiver):
        thread = in_another_thread(sender.close)
        with pytest.raises(EndOfStream):
            BlockingLoop().run(receiver.receive())
        thread.join()


def test_what_needs_an_event_loop_is_refused() -> None:
    loop = BlockingLoop()
    with pytest.raises(RuntimeError, match="awaits something that needs an event loop"):
        loop.run(asyncio.sleep(0))
    assert blocking_loop() is None


def test_an_error_comes_through() -> None:
    async def fail() -> None:
        raise LookupError("of its own")

    with pytest.raises(LookupError, match="of its own"):
        BlockingLoop().run(fail())


@pytest.mark.parametrize("limits", [(0.01, LONG), (LONG, 0.01)])
def test_the_earliest_limit_ends_a_wait_and_leaves_nothing_armed(limits: tuple[float, float]) -> None:
    async def wait() -> None:
        expired.extend(map(time_limit, limits))
        outer, inner = expired
        async with outer:
            try:
                async with inner:
                    await wait_any([receiver, Signal()])
            finally:
                assert loop.deadline is not None

    expired: list[TimeLimit] = []
    with joined() as (sender, receiver):
        loop = BlockingLoop()
        with pytest.raises(TimeoutError):
            loop.run(wait())
        assert [one.expired() for one in expired] == [limit < LONG for limit in limits]
        assert loop.deadline is None
        sender.send_nowait(note(1))
        assert isinstance(receiver, SharedReceiver)
        with pytest.raises(BlockingIOError):  # nobody is parked, so no bell was rung
            os.eventfd_read(receiver._handle.data_bells[0])


def test_a_limit_that_is_kept_changes_nothing() -> None:
    async def hurry() -> bool:
        limit = time_limit(LONG)
        async with limit:
            await Gate(is_open=True).wait()
        return limit.expired()

    loop = BlockingLoop()
    assert loop.run(hurry()) is False
    assert loop.deadline is None


def test_other_descriptors_are_heard_while_it_waits() -> None:
    """And one that leaves at the call of another is not called any more."""
    loop, done, heard = BlockingLoop(), Signal(), list[str]()
    fds = [create_doorbell() for _ in range(2)]

    def on_ring(number: int) -> None:
        heard.append(f"bell {number}")
        bells[1 - number].close()
        done.set()

    bells = [Doorbell(fd, partial(on_ring, number)) for number, fd in enumerate(fds)]

    async def listen() -> None:
        for bell in bells:
            bell.listen()
        await wait_any([done])

    for fd in fds:
        ring_doorbell(fd)
    loop.run(listen())
    assert heard in (["bell 0"], ["bell 1"])
    for bell in bells:
        bell.close()
    for fd in fds:
        os.close(fd)


def test_an_error_of_a_callback_ends_the_wait_and_leaves_nothing_armed() -> None:
    def fail() -> None:
        raise LookupError("of its own")

    async def wait() -> None:
        bell.listen()
        await wait_any([signal])

    fd, signal, loop = create_doorbell(), Signal(), BlockingLoop()
    bell = Doorbell(fd, fail)
    ring_doorbell(fd)
    with pytest.raises(LookupError, match="of its own"):
        loop.run(wait())
    signal.set()
    loop.run(wait())
    bell.close()
    os.close(fd)


def test_a_lost_wake_up_is_found_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringpost.ipc.parking.BACKSTOP_SECONDS", 0.01)
    monkeypatch.setattr("ringpost.ipc.ring_writer.ring_doorbell", lambda _: None)
    with joined() as (sender, receiver):
        assert isinstance(receiver, SharedReceiver)
        parked = threading.Event()
        monkeypatch.setattr(BlockingLoop, "park", _told_of(parked, BlockingLoop.park))

        def send_late() -> None:
            parked.wait()
            sender.send_nowait(note(1))

        thread = in_another_thread(send_late)
        assert BlockingLoop().run(receiver.receive()) == note(1)
        thread.join()
        assert receiver.statistics().lost_wakeups == 1


def _told_of(event: threading.Event, park: Callable[[BlockingLoop, float], None]) -> Callable[[BlockingLoop, float], None]:
    def told(loop: BlockingLoop, until: float) -> None:
        event.set()
        park(loop, until)

    return told


@pytest.mark.asyncio
async def test_a_gate_lets_all_through_who_still_find_it_open() -> None:
    gate, passed = Gate(), list[int]()

    async def go_through(number: int) -> None:
        await gate.wait()
        passed.append(number)

    tasks = [asyncio.create_task(go_through(number)) for number in range(3)]
    await asyncio.sleep(0)
    gate.open()
    gate.shut()
    for _ in range(5):
        await asyncio.sleep(0)
    assert passed == []
    tasks.pop().cancel()
    gate.open()
    await asyncio.gather(*tasks)
    assert passed == [0, 1]
    await gate.wait()


@pytest.mark.asyncio
async def test_long_work_is_done_in_a_thread_only_where_a_loop_has_to_go_on() -> None:
    assert await in_thread(threading.get_ident) != threading.get_ident()
    assert BlockingLoop().run(in_thread(threading.get_ident)) == threading.get_ident()
    assert time.monotonic() < await in_thread(time.monotonic)
