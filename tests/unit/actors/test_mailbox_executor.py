"""The core's line to its workers, with workers played by the test."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mailboxes import make_ring

from ringpost.actors.engine_core.executor import MailboxExecutor
from ringpost.actors.errors import ActorFailed, EngineError
from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.plans import InitCache, PlanMessage, StepPlan, StopWorker
from ringpost.ipc.messages.results import CallResult, ResultMessage, StepResult, WorkerReady

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


async def test_the_smallest_worker_decides_on_the_cache() -> None:
    with executor_and_workers() as (executor, workers):
        start = asyncio.create_task(executor.start())
        for rank, (_, results) in enumerate(workers):
            results.send_nowait(WorkerReady(rank, 100 - rank))
        for rank, (plans, results) in enumerate(workers):
            assert await plans.receive() == InitCache(99)
            assert not start.done()
            results.send_nowait(CallResult(0, rank))
        assert await start == 99


async def test_a_worker_that_fails_to_start_is_the_reason() -> None:
    with executor_and_workers() as (executor, workers):
        failure = Failure("worker0.1", 12, "OSError", "no weights")
        workers[0][1].send_nowait(WorkerReady(0, 5))
        workers[1][1].send_nowait(failure)
        with pytest.raises(ActorFailed, match=r"worker0\.1 \(pid 12\): OSError: no weights") as caught:
            await executor.start()
        assert caught.value.failure == failure


async def test_an_answer_nobody_asked_for_is_an_error() -> None:
    with executor_and_workers(1) as (executor, workers):
        workers[0][1].send_nowait(StepResult(0, []))
        with pytest.raises(EngineError, match="waited for WorkerReady and got StepResult"):
            await executor.start()


async def test_plans_reach_every_worker_in_order_and_results_come_back() -> None:
    with executor_and_workers() as (executor, workers):
        steps = [StepPlan(step, [], [], [], [], [], []) for step in range(3)]
        for step in steps:
            await executor.submit(step)
        await executor.stop()
        for plans, _ in workers:
            assert [await plans.receive() for _ in range(4)] == [*steps, StopWorker()]
        assert list(executor.results()) == []
        workers[0][1].send_nowait(StepResult(0, [1]))
        workers[0][1].send_nowait(StepResult(1, [2]))
        assert [end.ready() for end in executor.ends()] == [True, False]
        assert list(executor.results()) == [StepResult(0, [1]), StepResult(1, [2])]
