"""The frontend's line to a core: numbers, order, aborts that never wait, calls, and how it ends."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from mailboxes import make_lanes, make_ring, parked, receive_all

from ringpost.actors.errors import EngineDeadError, NoAnswerError
from ringpost.actors.frontend.core_client import CoreClient
from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.blocking import BlockingLoop
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.outputs import OutputMessage, UtilityReply
from ringpost.ipc.messages.requests import Abort, AddRequest, CloseSession, DescribeEngine, Fork, RequestMessage, Resume
from ringpost.ipc.messages.sampling import SamplingParams

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]

FIRST = (2 << 48) + 1  # number of the client's first request or call


@contextmanager
def client_and_core(
    unfinished: Sequence[RequestMessage] = (),
) -> Iterator[tuple[CoreClient, Receiver[RequestMessage], Sender[OutputMessage]]]:
    requests, outputs = make_lanes(RequestMessage), make_ring()
    core_in: Receiver[RequestMessage] = attach_receiver(requests.ordered.duplicate(), RequestMessage)
    core_out: Sender[OutputMessage] = attach_sender(outputs.duplicate(), OutputMessage)
    client = CoreClient(requests, outputs, lambda: iter(unfinished), frontend=2)
    try:
        yield client, core_in, core_out
    finally:
        client.close()
        core_in.close()
        core_out.close()


def add(request: int, tokens: int = 1) -> AddRequest:
    return AddRequest(request, "r", [1] * tokens, SamplingParams(seed=0), 0.0)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_numbers_are_fresh_and_belong_to_the_frontend() -> None:
    with client_and_core() as (client, _, _):
        numbers = [client.next_number() for _ in range(3)]
        assert numbers == [FIRST, FIRST + 1, FIRST + 2]


async def test_an_abort_is_sent_at_once_when_there_is_room() -> None:
    with client_and_core() as (client, core, _):
        await client.tell(add(1))
        client.abort(1)
        assert receive_all(core) == [add(1), Abort(1)]


async def test_aborts_without_room_follow_in_order_behind_what_waits() -> None:
    with client_and_core() as (client, core, _):
        flushing = asyncio.create_task(client.run())
        sending = asyncio.create_task(client.tell(add(1, 5000)))
        await turns()
        for request in (1, 2, 3):
            client.abort(request)
        received = [await core.receive() for _ in range(4)]
        assert received == [add(1, 5000), Abort(1), Abort(2), Abort(3)]
        await sending
        await turns()
        client.abort(4)
        assert receive_all(core) == [Abort(4)]
        flushing.cancel()
        await asyncio.wait([flushing])


async def test_an_abort_does_not_overtake_one_that_waits() -> None:
    with client_and_core() as (client, core, _):
        sending = asyncio.create_task(client.tell(add(1, 5000)))
        await turns()
        client.abort(1)
        assert await core.receive() == add(1, 5000)
        await sending
        client.abort(2)
        assert receive_all(core) == []
        flushing = asyncio.create_task(client.run())
        assert [await core.receive() for _ in range(2)] == [Abort(1), Abort(2)]
        flushing.cancel()
        await asyncio.wait([flushing])


async def test_an_abort_after_a_cancelled_large_request_arrives() -> None:
    with client_and_core() as (client, core, _):
        flushing = asyncio.create_task(client.run())
        sending = asyncio.create_task(client.tell(add(1, 5000)))
        await turns()
        sending.cancel()
        await asyncio.wait([sending])
        client.abort(1)
        assert await core.receive() == Abort(1)
        flushing.cancel()
        await asyncio.wait([flushing])


async def test_posts_and_aborts_keep_their_order_without_room_too() -> None:
    with client_and_core() as (client, core, _):
        posted: list[RequestMessage] = [Fork(1, 2, 30), add(3, 5000), Abort(3), CloseSession(2)]
        for message in posted:
            if isinstance(message, Abort):
                client.abort(message.request)
            else:
                client.post(message)
        flushing = asyncio.create_task(client.run())
        assert [await core.receive() for _ in posted] == posted
        flushing.cancel()
        await asyncio.wait([flushing])


async def test_what_was_posted_for_a_dead_core_is_not_for_its_successor() -> None:
    with client_and_core([add(7)]) as (client, core, _):
        flushing = asyncio.create_task(client.run())
        client.post(add(1, 5000))
        client.post(CloseSession(1))
        await turns()  # the first is on its way
        assert client.life == 1
        client.core_died(2)
        assert client.life == 2
        client.post(CloseSession(2))
        assert [await core.receive() for _ in range(4)] == [add(1, 5000), Resume(2), add(7), CloseSession(2)]
        await turns()
        assert receive_all(core) == []
        flushing.cancel()
        await asyncio.wait([flushing])


async def test_calls_get_their_own_answers() -> None:
    with client_and_core() as (client, core, outputs):
        calls = [asyncio.create_task(client.ask(DescribeEngine, 60)) for _ in range(2)]
        assert [await core.receive() for _ in calls] == [DescribeEngine(FIRST), DescribeEngine(FIRST + 1)]
        for number in (FIRST + 1, 99, FIRST, FIRST):
            outputs.send_nowait(UtilityReply(number, message=f"to {number}"))
            reply = await client.receive()
            assert isinstance(reply, UtilityReply)
            client.answer(reply)
        assert [(await call).message for call in calls] == [f"to {FIRST}", f"to {FIRST + 1}"]


async def test_a_cancelled_call_is_forgotten() -> None:
    with client_and_core() as (client, core, _):
        call = asyncio.create_task(client.ask(DescribeEngine, 60))
        await core.receive()
        call.cancel()
        await asyncio.wait([call])
        client.answer(UtilityReply(FIRST))
        assert len(client._asks) == 0


async def test_the_death_of_the_engine_ends_calls_and_whoever_waits_to_send() -> None:
    with client_and_core() as (client, core, _):
        call = asyncio.create_task(client.ask(DescribeEngine, 60))
        await core.receive()
        sending = [asyncio.create_task(client.tell(add(request, 5000))) for request in (1, 2)]
        blocked_call = asyncio.create_task(client.ask(DescribeEngine, 60))
        await turns()
        client.fail(EngineDeadError("worker0.0 died"))
        client.close()
        for task in (call, *sending, blocked_call):
            with pytest.raises(EngineDeadError, match=r"worker0\.0 died"):
                await task
        with pytest.raises(EngineDeadError, match=r"worker0\.0 died"):
            await client.tell(add(3))


async def test_whoever_waits_for_room_when_the_core_dies_gets_the_reason() -> None:
    with client_and_core() as (client, core_in, _):
        sends = [asyncio.create_task(client.tell(add(request, 700))) for request in range(20)]
        await turns()
        waiting = [task for task in sends if not task.done()]
        assert len(waiting) > 1
        core_in.close()  # as the supervisor marks a reaped process: nobody reads any more
        await turns()
        client.abort(1)  # harmless, although there is no core
        assert not any(task.done() for task in waiting)
        client.fail(EngineDeadError("core0 died"))
        client.close()
        for task in waiting:
            with pytest.raises(EngineDeadError, match="core0 died"):
                await task


async def test_what_a_successor_needs_is_sent_once_however_often_that_is_broken_off() -> None:
    needed = [add(request, 700) for request in range(1, 9)]  # more than there is room for
    with client_and_core(needed) as (client, core, _):
        client.core_died(2)
        received: list[RequestMessage] = []
        for _ in range(4):
            catching_up = asyncio.create_task(client.catch_up())
            await parked(catching_up)
            catching_up.cancel()
            await asyncio.wait([catching_up])
            received.append(await core.receive())
        catching_up = asyncio.create_task(client.catch_up())
        received += [await core.receive() for _ in range(5)]
        await catching_up
        assert received == [Resume(2), *needed]
        await client.wait_open()
        assert receive_all(core) == []


async def test_a_successor_that_dies_too_leaves_all_to_the_next() -> None:
    needed = [add(request, 700) for request in range(1, 9)]
    with client_and_core(needed) as (client, core, _):
        client.core_died(2)
        catching_up = asyncio.create_task(client.catch_up())
        await parked(catching_up)
        client.core_died(3)
        received: list[RequestMessage] = []
        while not received or received[-1] != Resume(3):
            received.append(await core.receive())
        assert [await core.receive() for _ in needed] == needed
        await catching_up
        assert received[0] == Resume(2)


async def test_a_question_that_blocks_has_its_deadline_while_a_successor_is_sent_what_it_needs() -> None:
    needed = [add(request, 700) for request in range(1, 9)]
    with client_and_core(needed) as (client, core, _):
        client.core_died(2)
        with pytest.raises(NoAnswerError, match="core0 has not answered DescribeEngine"):
            BlockingLoop().run(client.ask(DescribeEngine, 0.01))
        received = receive_all(core)
        assert received[:2] == [Resume(2), needed[0]]
        catching_up = asyncio.create_task(client.catch_up())
        received += [await core.receive() for _ in range(9 - len(received))]
        await catching_up
        assert received == [Resume(2), *needed]
        assert receive_all(core) == []
