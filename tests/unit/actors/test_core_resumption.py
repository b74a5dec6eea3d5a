"""The frontend when its core is restarted: what the successor is sent, in which order, and what is not lost meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from live_requests import register
from mailboxes import make_lanes, make_ring, parked, receive_all
from tiny_checkpoint import FIRST_BYTE_ID

from ringpost import RequestOutputKind
from ringpost.actors.errors import EngineGenerateError
from ringpost.actors.frontend.actor import Frontend
from ringpost.actors.frontend.collector import RequestOutputCollector
from ringpost.actors.frontend.core_client import CoreClient
from ringpost.actors.frontend.live_request import LiveRequest
from ringpost.actors.frontend.output_processor import OutputProcessor
from ringpost.actors.recovery import Recovery
from ringpost.actors.status import StatusBlock
from ringpost.actors.watch import EngineWatch
from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.config import SchedulerConfig
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.outputs import OutputMessage, StepOutputs, TokenDelta, UtilityReply
from ringpost.ipc.messages.requests import Abort, AddRequest, DescribeEngine, RequestMessage, Resume
from ringpost.ipc.messages.sampling import SamplingParams

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]

A, B = FIRST_BYTE_ID + 97, FIRST_BYTE_ID + 98
PARAMS = SamplingParams(seed=0, output_kind=RequestOutputKind.DELTA)


class Program:
    """A frontend with requests, whose core is the test."""

    def __init__(self) -> None:
        self.requests, self.outputs_ring = make_lanes(RequestMessage), make_ring()
        self.attach_core()
        self.outputs = OutputProcessor()
        self.client = CoreClient(self.requests.duplicate(), self.outputs_ring.duplicate(), self.outputs.unfinished)
        status = StatusBlock(lambda _: None, actor="frontend0", kind="frontend", supervisor=0, epoch=1)
        self.frontend = Frontend(self.client, self.outputs, status, EngineWatch([], 1.0), SchedulerConfig(max_num_seqs=3))
        self.collectors: dict[int, RequestOutputCollector] = {}
        self.lives: dict[int, LiveRequest] = {}

    def attach_core(self, epoch: int = 1) -> None:
        self.core_in: Receiver[RequestMessage] = attach_receiver(self.requests.ordered.duplicate(), RequestMessage, epoch=epoch)
        self.core_out: Sender[OutputMessage] = attach_sender(self.outputs_ring.duplicate(), OutputMessage, epoch)

    def restart_core(self, epoch: int = 2, alone: int | None = None, *, served: bool = True) -> None:
        """It dies and is replaced; the test goes on as its successor."""
        self.core_in.close()
        self.core_out.close()
        self.requests.vacate(writer=False)
        self.outputs_ring.vacate(writer=True)
        self.frontend.died(recovery("core0", epoch, alone, served=served))
        self.attach_core(epoch)

    def register(self, request: int, prompt: int = 1) -> AddRequest:
        live, self.collectors[request] = register(self.outputs, request, PARAMS, [A], f"r{request}")
        self.lives[request] = live
        self.outputs.tokenized(live, [A])
        return AddRequest(request, f"r{request}", [A] * prompt, PARAMS, 0.0)

    async def add(self, request: int) -> None:
        message = self.register(request)
        await self.client.wait_open()
        if self.outputs.sending(self.lives[request], message):
            await self.client.tell(message)

    def send_tokens(self, request: int, position: int, *tokens: int) -> None:
        self.core_out.send_nowait(StepOutputs(1, [TokenDelta(request, position, list(tokens))]))

    async def received(self, count: int) -> list[Any]:
        return [await self.core_in.receive() for _ in range(count)]


def recovery(actor: str, epoch: int, alone: int | None = None, *, served: bool = True) -> Recovery:
    failure = Failure(actor, 7, "ProcessDied", "killed by signal 9")
    death: Any = SimpleNamespace(actor=actor, reason="killed", failure=failure)
    return Recovery(
        deaths=[death],
        epoch=epoch,
        core_died=actor == "core0",
        core_served=served,
        worked=served,
        alone=alone,
        delay=0.0,
        replaced=[actor],
    )


@asynccontextmanager
async def program() -> AsyncIterator[Program]:
    made = Program()
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(made.client.run()), tasks.create_task(made.frontend.receive())]
            yield made
            for task in running:
                task.cancel()
    finally:
        made.client.close()
        for end in (made.core_in, made.core_out, made.requests, made.outputs_ring):
            end.close()


def outputs_of(message: Any) -> tuple[int, list[int], int]:
    assert isinstance(message, AddRequest)
    return message.request, message.output, message.deaths


async def test_the_successor_gets_a_resume_and_then_each_unfinished_request_with_what_it_has() -> None:
    async with program() as made:
        for request in (1, 2, 3):
            await made.add(request)
        assert len(await made.received(3)) == 3
        made.send_tokens(1, 0, A, B)
        made.core_out.send_nowait(StepOutputs(1, [TokenDelta(2, 0, [A], "length")]))
        made.restart_core()
        assert await made.core_in.receive() == Resume(2)
        assert [outputs_of(message) for message in await made.received(2)] == [(1, [A, B], 1), (3, [], 1)]
        made.send_tokens(1, 2, A)
        tokens: list[int] = []
        while len(tokens) < 3:
            tokens += (await made.collectors[1].get()).outputs[0].token_ids
        assert tokens == [A, B, A]
        assert made.outputs.stats.restarts == {("core0", "killed"): 1}
        assert made.outputs.stats.streams_resumed == 2


async def test_a_token_between_two_deaths_clears_a_request() -> None:
    async with program() as made:
        for request in (1, 2):
            await made.add(request)
        made.restart_core(2)
        await made.received(2 + 3)
        made.send_tokens(1, 0, A)
        made.restart_core(3)
        assert await made.core_in.receive() == Resume(3)
        assert [outputs_of(message) for message in await made.received(2)] == [(1, [A], 1), (2, [], 2)]


async def test_what_is_new_waits_for_the_successor_and_comes_after_what_goes_on() -> None:
    async with program() as made:
        await made.add(1)
        made.restart_core()
        await made.add(2)  # waits, as the restart has not been told yet
        assert [type(message) for message in await made.received(1)] == [AddRequest]  # of before: passed over
        assert await made.core_in.receive() == Resume(2)
        assert [outputs_of(message) for message in await made.received(2)] == [(1, [], 1), (2, [], 0)]


async def test_requests_that_found_no_room_are_sent_once_more_and_only_once() -> None:
    async with program() as made:
        sending = []
        for request in range(1, 40):
            task = asyncio.ensure_future(made.client.tell(message := made.register(request, prompt=50)))
            made.outputs.sending(made.lives[request], message)
            sending.append(task)
        await parked(sending[-1])
        made.restart_core()
        seen = [await made.core_in.receive()]
        while seen[-1] != Resume(2):
            seen.append(await made.core_in.receive())
        resumed = [outputs_of(message)[0] for message in await made.received(39)]
        assert resumed == list(range(1, 40))
        await asyncio.gather(*sending)
        assert receive_all(made.core_in) == []


async def test_requests_aborted_meanwhile_are_not_sent() -> None:
    async with program() as made:
        for request in (1, 2):
            await made.add(request)
        made.restart_core()
        made.outputs.abandon(made.lives[1])
        made.client.abort(1)
        await made.received(2)
        messages = await made.received(3)
        assert [message.request for message in messages if isinstance(message, AddRequest)] == [2]
        assert Abort(1) in messages
        assert Resume(2) in messages


async def test_a_successor_that_dies_before_it_has_everything() -> None:
    async with program() as made:
        for request in (1, 2):
            await made.add(request)
        made.restart_core(2)
        made.restart_core(3)
        messages = [await made.core_in.receive()]
        while messages[-1] != Resume(3):
            messages.append(await made.core_in.receive())
        assert [outputs_of(message) for message in await made.received(2)] == [(1, [], 2), (2, [], 2)]
        await made.add(3)
        assert outputs_of(await made.core_in.receive()) == (3, [], 0)


async def test_a_core_that_dies_before_it_is_ready_has_had_nothing_in_hand() -> None:
    async with program() as made:
        await made.add(1)
        made.restart_core(2)
        made.restart_core(3, served=False)
        messages = [await made.core_in.receive()]
        while messages[-1] != Resume(3):
            messages.append(await made.core_in.receive())
        assert outputs_of(await made.core_in.receive()) == (1, [], 1)
        assert made.outputs.stats.restarts == {("core0", "killed"): 2}
        assert made.outputs.stats.streams_resumed == 1


async def test_a_question_that_waits_is_asked_again() -> None:
    async with program() as made:
        asking = asyncio.ensure_future(made.client.ask(DescribeEngine, 1e6))
        (question,) = await made.received(1)
        made.restart_core()
        assert await made.received(2) == [Resume(2), question]
        made.core_out.send_nowait(UtilityReply(question.call))
        assert (await asking).ok
        made.restart_core(3)
        assert await made.core_in.receive() == Resume(3)
        await made.add(1)
        assert isinstance(await made.core_in.receive(), AddRequest)  # it was not asked a third time


async def test_the_request_that_two_cores_had_alone_when_they_died_is_ended() -> None:
    async with program() as made:
        for request in (1, 2):
            await made.add(request)
        await made.received(2)
        made.restart_core(2, alone=2)
        assert await made.core_in.receive() == Resume(2)
        assert [message.deaths_alone for message in await made.received(2)] == [0, 1]
        made.restart_core(3, alone=2)
        assert await made.core_in.receive() == Resume(3)
        assert outputs_of(await made.core_in.receive())[0] == 1
        assert receive_all(made.core_in) == []
        with pytest.raises(
            EngineGenerateError, match=r"core0 \(pid 7\): ProcessDied: killed by signal 9; it computed this request alone"
        ):
            await made.collectors[2].get()


async def test_only_as_many_as_run_at_once_are_suspected() -> None:
    async with program() as made:
        for request in range(1, 6):
            await made.add(request)
        await made.received(5)
        made.restart_core()
        assert await made.core_in.receive() == Resume(2)
        assert [outputs_of(message)[2] for message in await made.received(5)] == [1, 1, 1, 0, 0]


async def test_what_a_dead_core_had_sent_comes_before_the_end_of_the_engine() -> None:
    async with program() as made:
        await made.add(1)
        made.send_tokens(1, 0, A, B)
        made.frontend.died(msgspec.structs.replace(recovery("core0", 2), delay=None))
        output = made.collectors[1].get_nowait()
        assert output is not None
        assert output.outputs[0].token_ids == [A, B]
        assert made.outputs.stats.restarts == {}


async def test_when_only_workers_died_the_core_is_sent_nothing() -> None:
    async with program() as made:
        await made.add(1)
        made.frontend.died(recovery("worker0.0", 2))
        await made.add(2)
        assert [outputs_of(message) for message in await made.received(2)] == [(1, [], 0), (2, [], 0)]
        made.frontend.works_again(1.5)
        assert made.outputs.stats.pause_seconds == 1.5
