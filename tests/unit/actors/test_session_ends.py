"""The limits of a session and its ends: what waits, what is refused, and what each side learns."""

import asyncio
from typing import Any

import pytest
from session_core import SessionCore, deltas, shown, taken, token_ids

from ringpost import (
    EngineDeadError,
    EngineGenerateError,
    ParameterError,
    RequestEnded,
    RequestOutput,
    SamplingParams,
    Session,
    SessionTimeout,
    TooManySessions,
)
from ringpost.ipc.errors import MessageTooLarge
from ringpost.ipc.messages.requests import Abort, AddRequest, CloseSession, RequestMessage

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


async def blocked(core: SessionCore, session: Session, text: str = "late") -> asyncio.Task[int]:
    """An append that waits for room in the queue, which it has filled."""
    await session.append("a")
    for number in range(core.config.sessions.max_queued_chunks):
        await session.append(f"q{number}")
    waiting = asyncio.create_task(session.append(text))
    await core.settle()
    assert not waiting.done()
    return waiting


async def ended_by(waiting: asyncio.Task[Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await waiting


def gone(core: SessionCore) -> bool:
    """Neither side holds anything of a session."""
    return not (core.turns or core.core_contexts or len(core.sessions) or len(core.outputs) or core.outputs.stats.num_sessions)


async def test_a_full_queue_holds_its_producer_back(tiny: str) -> None:
    async with SessionCore(tiny, max_queued_chunks=2).running() as core:
        session = core.open()
        waiting = await blocked(core, session)
        second = asyncio.create_task(session.append("later"))
        await core.settle()
        second.cancel()
        await core.say(session, "x", "length")
        assert await waiting == 3
        with pytest.raises(asyncio.CancelledError):
            await second
        for _ in range(3):
            await core.say(session, "x", "length")
            taken(session)
        assert session.context == token_ids("aq0q1late"), "the cancelled one was not added"
        assert session.is_idle


@pytest.mark.parametrize("late", [False, True], ids=["before there is room", "after there is room"])
async def test_a_cancelled_append_adds_nothing_and_harms_none(tiny: str, late: bool) -> None:
    async with SessionCore(tiny, max_queued_chunks=1).running() as core:
        session = core.open()
        waiting = await blocked(core, session)
        if late:
            session.retract()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        if not late:
            session.retract()
        assert await session.append("z") == 2
        assert session.num_queued == 1


async def test_appends_keep_the_order_of_their_calls(long_tiny: str) -> None:
    async with SessionCore(long_tiny, num_blocks=1000).running() as core:
        session = core.open(SamplingParams(max_tokens=1))
        long = "m" * 5000  # which a thread tokenises
        appends = [asyncio.create_task(session.append(text)) for text in (long, "b", "c")]
        assert [await one for one in appends] == [0, 1, 2]
        for _ in range(3):
            await core.say(session, "x", "length")
        assert session.context == token_ids(long + "bc")


async def test_a_consumer_that_does_not_read_holds_its_session_back(tiny: str) -> None:
    async with SessionCore(tiny, max_queued_chunks=2).running() as core:
        session = core.open()
        for text in "ab":
            await session.append(text)
            await core.say(session, "x", "length")
        await session.append("c")
        await core.settle()
        assert (session.num_queued, core.turns) == (1, {})
        assert session.collector.get_nowait() is not None
        await core.say(session, "y", "length")
        assert [shown(output)[0] for output in taken(session)] == ["x", "y"]


async def test_what_is_certainly_wrong_is_refused_at_once_and_the_session_goes_on(tiny: str) -> None:
    async with SessionCore(tiny, num_blocks=4).running() as core:  # 64 tokens
        session = core.open(deltas(max_tokens=None))
        await session.append([9] * 20)
        await session.append([9] * 20)
        for prompt, params, message in (
            ([9] * 25, None, "prompt has 65 tokens, which can never fit the KV cache"),
            ([9] * 480, None, "prompt has 480 tokens behind the 40 of its session; with max_model_len=512"),
            ([9] * 480, deltas(n=2, temperature=1.0), "n must be 1 in a session, got 2"),
            ("x", deltas(prompt_logprobs=1), "prompt_logprobs must be None in a session, got 1"),
            ([9], deltas(min_tokens=60), "min_tokens must be at most 24"),
            ([9999], None, "prompt must hold token ids"),
            (5, None, "prompt must be text"),
        ):
            with pytest.raises(ParameterError, match=message):
                await session.append(prompt, params)  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match="keep_last_token must be a bool, got 'no'"):
            await session.append("x", keep_last_token="no")  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match="session_id must be text"):
            await session.fork(session_id=5)  # type: ignore[arg-type]
        with pytest.raises(ParameterError) as caught:
            await session.append([9] * 25)
        assert caught.value.code == "context_length_exceeded"
        await core.say(session, [5] * 5, "length")
        (first,) = taken(session)
        assert first.boundary
        assert first.boundary.context_length == 24
        await core.settle()
        (turn,) = core.turns.values()
        assert turn.add.params.max_tokens == 65 - 44, "the room behind the whole context"


async def test_a_context_that_has_grown_too_long_ends_the_session_after_its_outputs(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open(deltas(max_tokens=None))
        await session.append([9] * 100)
        await session.append([9] * 350)
        session.finish()
        await core.say(session, [5] * 70, "length")
        outputs: list[RequestOutput] = []
        with pytest.raises(ParameterError, match="350 tokens behind the 169 of its session") as caught:
            outputs += [output async for output in session]
        assert caught.value.code == "context_length_exceeded"
        for _ in range(2):
            with pytest.raises(ParameterError) as again:
                await session.append("x")
            assert again.value.code == "context_length_exceeded"
        await core.settle()
        assert gone(core)


async def test_outputs_come_before_the_error(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("a")
        await session.append("b")
        await core.say(session, "x", "length")
        await core.say(session, "yz")
        core.outputs.fail(core.turns[session.link.number].add.request, EngineGenerateError("it broke"))
        assert [shown(await session.collector.get()) for _ in range(2)] == [
            ("x", "length", 1, False),
            ("yz", None, None, False),
        ]
        for use in (session.collector.get, lambda: session.append("c")):
            with pytest.raises(EngineGenerateError, match="it broke"):
                await use()
        for control in (session.interrupt, session.retract, session.touch, lambda: session.rewind(0)):
            with pytest.raises(EngineGenerateError, match="it broke"):
                control()
        await core.settle()
        assert gone(core)


@pytest.mark.parametrize("state", ["fresh", "idle", "untaken", "queued", "speaking", "pause"])
async def test_an_abort_is_the_last_output_and_no_boundary(tiny: str, state: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        before: list[Any] = []
        if state != "fresh":
            await session.append("a")
            await core.say(session, "xy", "length")
            before = [("xy", "length", 2, False)]
        if state in ("idle", "queued"):
            assert [shown(output) for output in taken(session)] == before
            before = []
        if state in ("queued", "speaking", "pause"):
            await session.append("b")
            await session.append("c")
        said = ""
        if state in ("speaking", "pause"):
            await core.say(session, "z")
            said = "z"
        if state == "pause":
            await core.say(session, "", "abort")
        else:
            core.sessions.abort({"s"})
            core.sessions.abort({"s"})
        outputs = [output async for output in session]
        assert [shown(output) for output in outputs] == [*before, (said, "abort", None, True)]
        with pytest.raises(RequestEnded, match="session s was aborted"):
            await session.append("d")
        await core.settle()
        assert gone(core)


async def test_leaving_frees_everything(tiny: str) -> None:
    async with SessionCore(tiny, max_queued_chunks=1).running() as core:
        async with core.open() as session:
            waiting = await blocked(core, session)
            await core.settle()
            consumer = asyncio.create_task(session.collector.get())
            await core.settle()
        await ended_by(waiting, RequestEnded)
        with pytest.raises(RequestEnded, match="session s was closed by its consumer"):
            await consumer
        session.close()
        with pytest.raises(RequestEnded, match="session s is closed"):
            session.interrupt()
        with pytest.raises(RequestEnded):
            await session.fork()
        await core.settle()
        assert gone(core)
        assert isinstance(core.received[-1], CloseSession)
        assert any(isinstance(one, Abort) for one in core.received)


async def test_after_the_last_output_it_has_ended(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        session.finish()
        with pytest.raises(RequestEnded, match="takes no more input"):
            await session.append("a")
        assert [output.finished async for output in session] == [True]
        assert [output async for output in session] == []
        for control in (session.interrupt, session.retract):
            with pytest.raises(RequestEnded, match="session s has ended"):
                control()


async def test_two_consumers_at_once_are_told(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        first = asyncio.create_task(session.collector.get())
        await core.settle()
        with pytest.raises(RuntimeError, match="two consumers"):
            await anext(session)
        first.cancel()
        await asyncio.wait([first])
        await session.append("a")
        await core.say(session, "x", "length")
        assert shown(await anext(session))[0] == "x", "cancelled, it has taken nothing"


@pytest.mark.parametrize("fill", [False, True])
async def test_an_idle_session_ends(tiny: str, fill: bool) -> None:
    async with SessionCore(tiny, session_idle_timeout=0.02, max_queued_chunks=1).running() as core:
        session = core.open()
        if fill:  # also behind a consumer that does not read
            await session.append("a")
            await core.say(session, "x", "length")
            await session.append("b")
            assert shown(await session.collector.get())[0] == "x"
            await core.say(session, "y", "length")
            assert shown(await session.collector.get())[0] == "y"
        with pytest.raises(SessionTimeout, match=r"session s had no input and made no answer for 0\.02 s"):
            await session.collector.get()
        with pytest.raises(SessionTimeout):
            await session.append("c")
        await core.settle()
        assert gone(core)


async def test_a_limit_on_sessions(tiny: str) -> None:
    async with SessionCore(tiny, max_sessions=2).running() as core:
        first, second = core.open(), core.open()
        assert core.outputs.stats.num_sessions == 2
        with pytest.raises(TooManySessions, match="2 sessions are open already"):
            core.open()
        with pytest.raises(TooManySessions):
            await second.fork()
        first.close()
        assert core.open().session_id == "s"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"idle_timeout": 0}, "idle_timeout must be a number of seconds above 0"),
        ({"idle_timeout": float("nan")}, "idle_timeout"),
        ({"idle_timeout": "1"}, "idle_timeout"),
        ({"idle_timeout": True}, "idle_timeout must be a number of seconds above 0, at most 1e[+]09, got True"),
        ({"session_id": 5}, "session_id must be text"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": 3}, "priority must be 0"),
        ({"params": SamplingParams(n=2)}, "n must be 1 in a session"),
        ({"params": SamplingParams(prompt_logprobs=0)}, "prompt_logprobs must be None"),
    ],
)
async def test_wrong_options_open_nothing(tiny: str, options: dict[str, Any], message: str) -> None:
    async with SessionCore(tiny).running() as core:
        with pytest.raises(ValueError, match=message):
            core.open(**options)
        assert len(core.sessions) == 0


async def test_the_end_of_the_engine_is_that_of_its_sessions(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        idle, busy, producing = core.open(), core.open(), core.open()
        await busy.append("a")
        await core.say(busy, "x")
        waiting = await blocked(core, producing)
        core.sessions.fail_all(EngineDeadError("core0 died"))
        assert shown(await busy.collector.get())[0] == "x"
        for session in (idle, busy):
            with pytest.raises(EngineDeadError, match="core0 died"):
                await session.collector.get()
        await ended_by(waiting, EngineDeadError)
        assert gone(core) or not len(core.sessions)


async def test_a_full_mailbox_keeps_the_order_of_everything(tiny: str) -> None:
    async with SessionCore(tiny, mailbox_bytes=4096).running() as core:
        sessions = [core.open() for _ in range(30)]
        for session in sessions:
            await session.append([9] * 100)
        for _ in range(10):
            await asyncio.sleep(0)  # the core takes nothing
        for number, session in enumerate(sessions):
            session.interrupt()
            await session.append([10 + number])
        child = await sessions[0].fork()
        sessions[1].close()
        for _ in range(10):
            await core.settle()
        assert len(core.turns) == 29
        for session in (one for one in sessions if one is not sessions[1]):
            assert core.turns[session.link.number].context == session.context
        assert child.context == sessions[0].context
        assert [one.request for one in core.received if isinstance(one, AddRequest)] == sorted(
            one.request for one in core.received if isinstance(one, AddRequest)
        )


async def test_a_message_that_fits_no_mailbox_ends_its_session_alone(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SessionCore(tiny).running() as core:
        other, session = core.open(session_id="other"), core.open()
        post = core.client.post

        def refuse(message: RequestMessage) -> None:
            if isinstance(message, AddRequest):
                raise MessageTooLarge("the encoded message exceeds the most that a mailbox takes")
            post(message)

        with monkeypatch.context() as patched:
            patched.setattr(core.client, "post", refuse)
            await session.append("a")
            await core.settle()
        with pytest.raises(MessageTooLarge):
            await anext(session)
        with pytest.raises(MessageTooLarge):
            await session.append("b")
        await other.append("c")
        await core.say(other, "x", "length")
        assert [shown(output) for output in taken(other)] == [("x", "length", 1, False)]
