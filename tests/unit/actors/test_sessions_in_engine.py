"""Sessions of a whole engine in this process, with a real model: what is said, and what is left of them."""

import asyncio
import copy
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from ringpost import AsyncLLM, EngineDeadError, RequestOutput, SamplingParams, SessionTimeout, StreamingInput
from ringpost.actors.errors import RequestEnded

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, output_kind="final_only")  # type: ignore[arg-type]
ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True, seed=1, output_kind="delta")  # type: ignore[arg-type]
EOS = 2


def engine_of(model: str, **options: Any) -> AsyncLLM:
    return AsyncLLM.from_engine_args(model=model, single_process=True, num_threads=1, **options)


async def chunks_of(chunks: Sequence[Any]) -> AsyncGenerator[Any, None]:
    for chunk in chunks:
        yield chunk


async def answers(engine: AsyncLLM, chunks: Sequence[Any], params: SamplingParams = GREEDY) -> list[RequestOutput]:
    return [output async for output in engine.generate(chunks_of(chunks), params) if output.boundary is not None]


async def tokens_after(engine: AsyncLLM, prompt: list[int], params: SamplingParams = GREEDY) -> list[int]:
    (output,) = [output async for output in engine.generate(prompt, params)]
    return list(output.outputs[0].token_ids)


async def all_free(engine: AsyncLLM) -> None:
    """Return when nothing is held any more."""
    while True:
        description = await engine.describe()
        if (description.free_blocks, description.sessions) == (description.num_blocks, 0):
            return
        await asyncio.sleep(0)


def words(number: int) -> list[list[int]]:
    return [[3 + (7 * number + 11 * chunk + place) % 200 for place in range(1 + chunk % 5)] for chunk in range(10)]


async def test_a_session_says_what_requests_with_the_same_tokens_say(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        alone = [await answers(engine, words(number)) for number in range(4)]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(answers(engine, words(number))) for number in range(4)]
        together = [task.result() for task in running]
        for number, (some, others) in enumerate(zip(alone, together, strict=True)):
            context: list[int] = []
            for chunk, output, other in zip(words(number), some, others, strict=True):
                asked = context + chunk
                assert output.prompt_token_ids == asked == other.prompt_token_ids
                assert output.num_cached_tokens == len(context), "nothing is computed again"
                said = list(output.outputs[0].token_ids)
                assert said == await tokens_after(engine, asked) == other.outputs[0].token_ids
                context = asked + said[:-1]
                assert output.boundary is not None
                assert output.boundary.context_length == len(context)
            assert (some[-1].finished, some[0].finished) == (True, False)
        await all_free(engine)


async def test_the_callers_prompt_is_not_changed(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        prompt, bias = [50, 57, 28, 64, 31], {9: 0.5}
        params = SamplingParams(temperature=0, max_tokens=5, logit_bias=bias, stop=["zz"])
        before = copy.deepcopy((prompt, bias, params))
        fresh = await tokens_after(engine, [*prompt], params.derive(output_kind=GREEDY.output_kind))
        outputs = await answers(engine, [StreamingInput(prompt, params), [58] * 7, [19] * 5], params)
        assert [len(output.prompt_token_ids) for output in outputs] == [5, 16, 25]
        outputs[0].prompt_token_ids.append(1)
        assert (prompt, bias, params) == before
        assert await tokens_after(engine, prompt, params.derive(output_kind=GREEDY.output_kind)) == fresh


async def test_a_turn_that_ends_with_its_first_token(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        forced = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, allowed_token_ids=[58])
        at_once = SamplingParams(temperature=0, max_tokens=4, allowed_token_ids=[EOS])
        other = asyncio.create_task(tokens_after(engine, [5, 6, 7]))
        chunks = [StreamingInput("one", forced), StreamingInput("two", at_once), StreamingInput("three", GREEDY)]
        first, second, third = await answers(engine, chunks)
        assert list(first.outputs[0].token_ids) == [58] * 4
        assert (second.outputs[0].text, list(second.outputs[0].token_ids), second.outputs[0].finish_reason) == (
            "",
            [EOS],
            "stop",
        )
        assert len(third.outputs[0].token_ids) == 6
        assert third.prompt_token_ids == second.prompt_token_ids + await engine.token_ids("three")
        assert len(await other) == 6
        assert [output.outputs[0].finish_reason async for output in engine.generate(chunks_of([]))] == ["stop"]
        with pytest.raises(ValueError, match="request_id must be text, got 5"):
            await anext(engine.generate(chunks_of([]), request_id=5))  # type: ignore[arg-type]
        await all_free(engine)
        await engine.check_health()


@pytest.mark.parametrize("given", [StreamingInput("a"), None, chunks_of])
async def test_what_is_neither_a_prompt_nor_a_generator_of_chunks(tiny: str, given: Any) -> None:
    with pytest.raises(ValueError, match="a dict of either, or an async generator of StreamingInput, got") as refused:
        await anext(engine_of(tiny).generate(given))
    assert repr(given)[:100] in str(refused.value)


async def test_silence_ends_a_session_and_frees_its_blocks(tiny: str) -> None:
    async with engine_of(tiny, session_idle_timeout=0.2) as engine:
        session = await engine.open_session(GREEDY)
        await session.append("one turn")
        assert (await anext(session)).boundary is not None
        assert (await engine.describe()).sessions == 1
        with pytest.raises(SessionTimeout, match="idle timeout"):
            await anext(session)
        await all_free(engine)


async def test_a_turn_nobody_saw_the_end_of_leaves_nothing_behind(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        first = await engine.open_session(GREEDY, "name")
        await first.append([9] * 20)
        await anext(first)
        await first.append([10] * 20, ENDLESS)
        await anext(first)
        first.close()
        async with await engine.open_session(GREEDY, "name") as again:
            await again.append([11] * 20)
            output = await anext(again)
            assert output.prompt_token_ids == [11] * 20
            assert list(output.outputs[0].token_ids) == await tokens_after(engine, [11] * 20)
        await all_free(engine)


async def test_silent_sessions_give_way_and_answer_when_asked_again(tiny: str) -> None:
    async with engine_of(tiny, num_blocks_override=24) as engine:
        sessions = [await engine.open_session(GREEDY) for _ in range(20)]
        for number, session in enumerate(sessions):
            await session.append([10 + number] * 40)
            await anext(session)
        assert len(await tokens_after(engine, [7] * 200)) == 6
        description = await engine.describe()
        assert description.sessions == 20
        assert description.sessions_evicted > 10
        for session in sessions:
            context = session.context
            await session.append([5])
            assert list((await anext(session)).outputs[0].token_ids) == await tokens_after(engine, [*context, 5])
            session.close()
        await all_free(engine)


async def test_interrupts_forks_and_retracts(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        session = await engine.open_session(GREEDY)
        await session.append([9] * 20)
        await anext(session)
        await session.append([8] * 3, ENDLESS)
        said: list[int] = []
        while len(said) < 5:
            said += (await anext(session)).outputs[0].token_ids
        child = await session.fork()
        assert session.interrupt(keep_tokens=3) == 25 + 3 + 3
        assert (await anext(session)).outputs[0].finish_reason == "interrupt"
        context = session.context
        assert context[-6:] == [8] * 3 + said[:3]
        async with child:
            spoken = child.context
            assert spoken[: len(context) + 2] == context + said[3:5]
            await child.append([6])
            assert list((await anext(child)).outputs[0].token_ids) == await tokens_after(engine, [*spoken, 6])
        await session.append([7])
        assert list((await anext(session)).outputs[0].token_ids) == await tokens_after(engine, [*context, 7])
        assert (session.retract(), session.retract(), session.retract()) == (len(context), 25, 0)
        await session.append([5])
        assert list((await anext(session)).outputs[0].token_ids) == await tokens_after(engine, [5])
        session.close()
        await all_free(engine)


async def test_stop_strings_leave_no_trace_in_either_context(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        params = SamplingParams(max_tokens=40, seed=3, ignore_eos=True, output_kind="final_only")  # type: ignore[arg-type]
        (whole,) = [output async for output in engine.generate([9] * 20, params)]
        stop = next(iter(set(whole.outputs[0].text[8:]) - {"\ufffd"}))
        async with await engine.open_session(GREEDY) as session:
            await session.append([9] * 20, SamplingParams(max_tokens=40, seed=3, ignore_eos=True, stop=stop))
            async for output in session:
                if output.boundary is not None:
                    break
            assert output.outputs[0].stop_reason == stop
            context = session.context
            await session.append([7])
            assert list((await anext(session)).outputs[0].token_ids) == await tokens_after(engine, [*context, 7])


async def test_aborts_pauses_and_cache_resets(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        talking, idle = [await engine.open_session(ENDLESS, name) for name in ("talking", "idle")]
        await talking.append("a")
        await anext(talking)
        await engine.reset_prefix_cache(True)
        await engine.pause_generation("abort")
        outputs = [output async for output in talking]
        assert (outputs[-1].outputs[0].finish_reason, outputs[-1].boundary, outputs[-1].finished) == ("abort", None, True)
        await idle.append("b", GREEDY)
        await engine.resume_generation()
        assert (await anext(idle)).outputs[0].finish_reason == "length"
        await engine.abort(["idle", "talking", "none"])
        assert [output.outputs[0].finish_reason async for output in idle] == ["abort"]
        with pytest.raises(RequestEnded):
            await idle.append("c")
        await all_free(engine)


async def test_shutting_down_ends_sessions(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        talking, idle = [await engine.open_session(ENDLESS) for _ in range(2)]
        await talking.append("a")
        await anext(talking)
        assert (engine.num_unfinished_requests, engine.stats.num_sessions) == (1, 2)
    for session in (talking, idle):
        assert [output.outputs[0].finish_reason async for output in session][-1] == "abort"
        with pytest.raises(EngineDeadError):
            await session.append("b")
    with pytest.raises(EngineDeadError):
        await engine.open_session()
    assert engine.stats.num_sessions == 0


async def test_leaving_the_generator_frees_the_session(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        async with aclosing(engine.generate(chunks_of(["a", "b"]), ENDLESS)) as outputs:
            async for _ in outputs:
                break
        await all_free(engine)
