"""The core's line to its workers, with workers played by the test."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from mailboxes import make_ring, receive_all

from ringpost.actors.engine_core.executor import MailboxExecutor
from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.errors import WouldBlock
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.descriptions import WorkerDescription
from ringpost.ipc.messages.plans import DescribeWorker, InitCache, NewRow, PlanMessage, Reset, StepPlan, StopWorker
from ringpost.ipc.messages.results import CallResult, ResultMessage, StepResult, WorkerReady
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.ipc.parking import wait_any

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]

Workers = list[tuple[Receiver[PlanMessage], Sender[ResultMessage]]]


@contextmanager
def executor_and_workers(count: int = 2) -> Iterator[tuple[MailboxExecutor, Workers]]:
    plans, results = make_ring(readers=count, union=PlanMessage), [make_ring(union=ResultMessage) for _ in range(count)]
    workers: Workers = [
        (attach_receiver(plans.duplicate(), PlanMessage, slot=rank), attach_sender(results[rank].duplicate(), ResultMessage))
        for rank in range(count)
    ]
    executor = MailboxExecutor(plans, results)
    try:
        yield executor, workers
    finally:
        ends: list[Any] = [executor._plans, *executor._results, *(end for worker in workers for end in worker)]
        for end in ends:
            end.close()


async def begin(workers: Workers, epoch: int = 1, blocks: int = 9) -> None:
    """Play the workers' part in the beginning of an epoch."""
    for rank, (plans, results) in enumerate(workers):
        while await plans.receive() != Reset(epoch):
            pass
        results.send_nowait(WorkerReady(rank, blocks, epoch))
    for rank, (plans, results) in enumerate(workers):
        assert isinstance(await plans.receive(), InitCache)
        results.send_nowait(CallResult(0, rank))


def step(number: int, tokens: int = 0) -> StepPlan:
    new = [NewRow(0, 1, [5] * tokens, tokens, [], SamplingParams())] if tokens else []
    return StepPlan(number, new, [], [], [], [], [])


async def test_the_smallest_worker_decides_on_the_cache() -> None:
    with executor_and_workers() as (executor, workers):
        start = asyncio.create_task(executor.start())
        for rank, (plans, results) in enumerate(workers):
            assert await plans.receive() == Reset(1)
            results.send_nowait(WorkerReady(rank, 100 - rank))
        for rank, (plans, results) in enumerate(workers):
            assert await plans.receive() == InitCache(99)
            assert not executor.ready
            results.send_nowait(CallResult(0, rank))
        assert await start == 99
        assert executor.ready


async def test_every_worker_is_asked_to_describe_itself() -> None:
    with executor_and_workers() as (executor, workers):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(begin(workers))
            await executor.start()
        assert executor.num_workers == 2
        executor.describe(4)
        answers = [CallResult(4, rank, WorkerDescription(rank, 1, "cpu", "float32", 1, 0, 0, 0)) for rank in range(2)]
        for (plans, results), answer in zip(workers, answers, strict=True):
            assert await plans.receive() == DescribeWorker(4)
            results.send_nowait(answer)
        assert list(executor.results()) == answers


async def test_plans_reach_every_worker_in_order_and_results_come_back() -> None:
    with executor_and_workers() as (executor, workers):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(begin(workers))
            await executor.start()
        steps = [step(number) for number in range(3)]
        for plan in steps:
            await executor.submit(plan)
        await executor.stop()
        for plans, _ in workers:
            assert [await plans.receive() for _ in range(4)] == [*steps, StopWorker()]
        assert list(executor.results()) == []
        workers[0][1].send_nowait(StepResult(0, [1]))
        workers[0][1].send_nowait(StepResult(1, [2]))
        assert [end.ready() for end in executor.ends()] == [True, False]
        assert list(executor.results()) == [StepResult(0, [1]), StepResult(1, [2])]


async def test_what_belongs_to_an_earlier_epoch_is_passed_over() -> None:
    with executor_and_workers() as (executor, workers):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(begin(workers, blocks=9))
            await executor.start()
        executor.begin(epoch=3)
        (_, first), (_, second) = workers
        for message in (StepResult(7, [1]), WorkerReady(0, 9, epoch=2), CallResult(0, 0)):
            first.send_nowait(message)
        second.send_nowait(CallResult(0, 1))
        assert list(executor.results()) == []
        async with asyncio.TaskGroup() as tasks:
            beginning = tasks.create_task(begin(workers, epoch=3, blocks=4))
            while not beginning.done():
                assert list(executor.results()) == []
                await asyncio.sleep(0)
        assert list(executor.results()) == []
        first.send_nowait(StepResult(8, [2]))
        assert list(executor.results()) == [StepResult(8, [2])]


async def test_the_cache_keeps_its_size_over_epochs() -> None:
    with executor_and_workers(1) as (executor, [(plans, results)]):
        for epoch, blocks in ((1, 9), (2, 4)):
            executor.begin(epoch)
            assert await plans.receive() == Reset(epoch)
            results.send_nowait(WorkerReady(0, blocks, epoch))
            assert list(executor.results()) == []
            assert await plans.receive() == InitCache(9)
            results.send_nowait(CallResult(0, 0))
            assert list(executor.results()) == []
            assert executor.ready


async def test_an_epoch_that_finds_no_room_begins_when_there_is_some() -> None:
    """The plans that nobody has taken since the worker died are still there."""
    with executor_and_workers(1) as (executor, [(plans, results)]):
        for message in (step(0, tokens=500), Reset(1)):
            with suppress(WouldBlock):
                while True:
                    executor._plans.send_nowait(message)
        executor.begin(2)
        assert [end.ready() for end in executor.ends()] == [False, False]
        assert Reset(2) not in receive_all(plans)
        await wait_any(executor.ends())
        assert list(executor.results()) == []
        assert await plans.receive() == Reset(2)
        assert len(executor.ends()) == 1
        results.send_nowait(WorkerReady(0, 4, 2))
        assert list(executor.results()) == []
        assert await plans.receive() == InitCache(4)
