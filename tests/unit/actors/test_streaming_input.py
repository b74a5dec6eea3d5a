"""A session fed by a caller's generator: what the generator does reaches the consumer, and what he does the generator."""

import asyncio
import traceback
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from session_core import SessionCore, deltas, shown, token_ids

from ringpost import ParameterError, RequestOutput, SamplingParams, StreamingInput, TooManySessions
from ringpost.actors.frontend.streaming_input import stream_outputs
from ringpost.ipc.messages.requests import AddRequest

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


class Source:
    """A caller's generator, whose next step is the test's."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[Any] = asyncio.Queue()
        self.yielded = 0
        self.closed = False

    async def inputs(self) -> AsyncGenerator[Any, None]:
        """Yields what is put; ends at None, raises exceptions."""
        try:
            while (step := await self.steps.get()) is not None:
                if isinstance(step, BaseException):
                    raise step
                yield step
                self.yielded += 1
        finally:
            await asyncio.sleep(0)
            self.closed = True

    def put(self, *steps: Any) -> None:
        for step in steps:
            self.steps.put_nowait(step)


class Stream:
    """The consumer's side."""

    def __init__(self, core: SessionCore, source: Source) -> None:
        self.core = core

        async def open_session() -> Any:
            self.session = core.open()
            return self.session

        self.outputs = stream_outputs(open_session, source.inputs())

    async def begin(self) -> asyncio.Task[RequestOutput]:
        """Ask for the first output, and have everything arrive."""
        first = asyncio.create_task(anext(self.outputs))
        await self.core.settle()
        return first

    async def next(self) -> Any:
        return shown(await anext(self.outputs))


def gone(core: SessionCore) -> bool:
    return not (core.turns or core.core_contexts or len(core.sessions) or len(core.outputs))


async def test_chunks_with_their_own_parameters_and_plain_prompts(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        source = Source()
        stream = Stream(core, source)
        source.put("a", StreamingInput("b", deltas(max_tokens=7), keep_last_token=True), token_ids("c"), {"prompt": "d"}, None)
        first = await stream.begin()
        for _ in range(4):
            await core.say(stream.session, "xy", "length")
        assert shown(await first) == ("xy", "length", 2, False)
        assert [await stream.next() for _ in range(3)] == [
            ("xy", "length", 5, False),
            ("xy", "length", 7, False),
            ("xy", "length", 9, True),
        ]
        with pytest.raises(StopAsyncIteration):
            await stream.next()
        assert [one.params.max_tokens for one in core.received if isinstance(one, AddRequest)] == [100, 7, 100, 100]
        assert source.closed
        await core.settle()
        assert gone(core)


async def test_a_generator_without_chunks_gives_one_output(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        source = Source()
        source.put(None)
        assert [shown(output) async for output in Stream(core, source).outputs] == [("", "stop", None, True)]


async def test_the_generator_is_held_back(tiny: str) -> None:
    async with SessionCore(tiny, max_queued_chunks=2).running() as core:
        source = Source()
        stream = Stream(core, source)
        source.put(*"abcdefgh", None)
        first = await stream.begin()
        assert source.yielded == 3, "one that is answered, two that wait"
        await core.say(stream.session, "x", "length")
        await first
        assert source.yielded == 4
        await stream.outputs.aclose()
        assert source.closed


@pytest.mark.parametrize("error", [OSError("the microphone broke"), asyncio.CancelledError("its own")])
async def test_what_the_generator_raises_comes_after_what_was_said(tiny: str, error: BaseException) -> None:
    async with SessionCore(tiny).running() as core:
        source = Source()
        stream = Stream(core, source)
        source.put("a", "b", "c")
        first = await stream.begin()
        await core.say(stream.session, "x", "length")
        await core.say(stream.session, "yz")
        source.put(error)
        await core.settle()
        assert shown(await first)[0] == "x"
        assert (await stream.next())[0] == "yz"
        with pytest.raises(type(error)) as caught:
            await stream.next()
        assert caught.value is error
        assert "inputs" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)], "where it was raised"
        await core.settle()
        assert gone(core)
        assert core.outputs.stats.finished["abort"] == 1


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (5, "input must yield StreamingInput or prompts, got 5"),
        (StreamingInput(""), "empty"),
        (StreamingInput("b", SamplingParams(n=2)), "n must be 1"),
        (StreamingInput([1] * 600), "context_length|may have at most"),
    ],
)
async def test_a_wrong_chunk_ends_it_after_what_was_said(tiny: str, step: Any, message: str) -> None:
    async with SessionCore(tiny).running() as core:
        source = Source()
        stream = Stream(core, source)
        source.put("a")
        first = await stream.begin()
        await core.say(stream.session, "x", "length")
        source.put(step)
        assert shown(await first)[0] == "x"
        with pytest.raises(ParameterError, match=message):
            await stream.next()
        assert source.closed
        await core.settle()
        assert gone(core)


@pytest.mark.parametrize("way", ["close", "cancel", "leave"])
@pytest.mark.parametrize("aborted", [False, True], ids=["", "while it is aborted"])
async def test_whoever_leaves_frees_everything(tiny: str, way: str, aborted: bool) -> None:
    async with SessionCore(tiny).running() as core:
        source = Source()
        stream = Stream(core, source)
        source.put("a", "b")

        async def consume() -> None:
            async with aclosing(stream.outputs) as outputs:
                async for _ in outputs:
                    if way == "leave":
                        break

        consumer = asyncio.create_task(consume() if way != "close" else anext(stream.outputs))
        await core.settle()
        await core.say(stream.session, "x")
        if aborted:
            core.sessions.abort({"s"})
        if way == "cancel":
            consumer.cancel()
        await asyncio.wait([consumer])
        if way == "close":
            await stream.outputs.aclose()
        assert source.closed
        await core.settle()
        assert gone(core)


async def test_an_abort_ends_the_generator_too(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        source = Source()
        stream = Stream(core, source)
        source.put("a")
        first = await stream.begin()
        core.sessions.abort({"s"})
        assert shown(await first) == ("", "abort", None, True)
        with pytest.raises(StopAsyncIteration):
            await stream.next()
        assert source.closed


async def test_where_no_session_can_be_opened_the_generator_is_closed(tiny: str) -> None:
    async with SessionCore(tiny, max_sessions=1).running() as core:
        core.open()
        source = Source()
        inputs = source.inputs()

        async def open_session() -> Any:
            return core.open()

        with pytest.raises(TooManySessions):
            await anext(stream_outputs(open_session, inputs))
        with pytest.raises(StopAsyncIteration):
            await anext(inputs)


async def test_an_iterable_that_is_no_generator(tiny: str) -> None:
    class Words:
        def __init__(self) -> None:
            self.words = iter(["a", "b"])

        def __aiter__(self) -> AsyncIterator[str]:
            return self

        async def __anext__(self) -> str:
            for word in self.words:
                return word
            raise StopAsyncIteration

    async with SessionCore(tiny).running() as core:

        async def open_session() -> Any:
            return core.open()

        stream = stream_outputs(open_session, Words())
        first = asyncio.create_task(anext(stream))
        for _ in range(2):
            await core.settle()
            (session,) = core.sessions._open
            await core.say(session, "x", "length")
        assert [shown(await first), shown(await anext(stream))] == [("x", "length", 1, False), ("x", "length", 2, True)]
