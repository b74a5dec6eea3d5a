"""Sessions of engines with processes: each answer is that of one request with the same tokens. Over workers without a model."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from conversation import ENDLESS, Conversation
from faulty_engines import FaultyEngines, greedy, prompt_of, seeded
from scripted_worker import tokens_of

from ringpost import AsyncLLM, RequestEnded, RequestOutputKind, SessionTimeout, StreamingInput, TooManySessions
from ringpost.ipc.messages.outputs import EngineDescription

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

SIZE = 16  # tokens of a block


async def settled(engine: AsyncLLM, condition: Callable[[EngineDescription], bool]) -> EngineDescription:
    """Wait until the core says so."""
    while not condition(description := await engine.describe()):
        pass
    return description


async def all_free(engine: AsyncLLM) -> None:
    """Wait until the core holds nothing."""
    await settled(engine, lambda now: (now.sessions, now.running, now.waiting, now.free_blocks) == (0, 0, 0, now.num_blocks))


async def conversation(engine: AsyncLLM, **options: Any) -> Conversation:
    return Conversation(await engine.open_session(greedy(), **options))


async def test_turns_are_requests_with_all_tokens_and_compute_only_new_ones(engines: FaultyEngines) -> None:
    async def converse(number: int) -> None:
        talk = await conversation(engine)
        async with talk.session:
            known = 0
            for turn in range(12):
                chunk = prompt_of(100 * number + turn, 1 + (7 * turn + number) % 40)
                params = seeded(turn, 1 + turn % 9) if turn % 3 == 2 else greedy(1 + (5 * turn) % 20)
                await talk.turn(chunk, params, keep=turn % 4 == 1)
                # With the last token, which was never computed, there is one more to compute.
                assert known - 1 <= talk.cached <= known, "the KV of the context was there"
                known = len(talk.context)

    async with engines.engine(block_size=SIZE, enable_prefix_caching=False) as engine:
        await asyncio.gather(*map(converse, range(12)))
        await all_free(engine)


async def test_a_generator_feeds_a_session(engines: FaultyEngines) -> None:
    chunks = [prompt_of(number, 10) for number in range(4)]

    async def inputs() -> AsyncIterator[StreamingInput]:
        for chunk in chunks:
            yield StreamingInput(chunk, keep_last_token=True)

    async with engines.engine() as engine:
        params = greedy(5, output_kind=RequestOutputKind.FINAL_ONLY)
        outputs = [output async for output in engine.generate(inputs(), params)]
        assert [output.finished for output in outputs[:4]] == [False] * 3 + [len(outputs) == 4]
        context: list[int] = []
        for number, output in enumerate(outputs[:4]):
            context += chunks[number]
            answer = tokens_of(context, params)
            assert (output.prompt_token_ids, output.outputs[0].token_ids) == (context, answer)
            context += answer
        await all_free(engine)


@pytest.mark.parametrize(("after", "keep"), [(1, 0), (40, 0), (40, 13), (40, 40), (17, 16)])
async def test_an_interrupted_answer_is_known_as_far_as_it_was_kept(engines: FaultyEngines, after: int, keep: int) -> None:
    async with engines.engine(block_size=SIZE) as engine:
        talk = await conversation(engine)
        async with talk.session:
            await talk.turn(prompt_of(1), greedy(5))
            await talk.broken_off(prompt_of(2, 21), after, keep)
            await talk.turn(prompt_of(3, 3), greedy(20))
            await talk.broken_off(prompt_of(4), after, keep)
            # In the middle of the next chunk's arrival: it is queued when the answer is interrupted.
            chunks = [prompt_of(5), prompt_of(6)]
            for chunk in chunks:
                await talk.session.append(chunk, greedy(ENDLESS, output_kind=RequestOutputKind.DELTA))
            for chunk in chunks:
                await talk.interrupted([*talk.context, *chunk], after, keep)
            await talk.turn(prompt_of(7), greedy(20))
        await all_free(engine)


async def test_a_retracted_chunk_was_never_there(engines: FaultyEngines) -> None:
    async with engines.engine(block_size=SIZE) as engine:
        talk = await conversation(engine)
        async with talk.session:
            await talk.turn(prompt_of(1, 30), greedy(5))
            before = list(talk.context)
            await talk.retracted(prompt_of(2), after=20)
            await talk.turn(prompt_of(3), greedy(25))
            assert talk.session.retract() == len(before)
            talk.context = before
            await talk.turn(prompt_of(4), greedy(25))
            assert (talk.session.retract(), talk.session.retract()) == (len(before), 0)
            talk.context = []
            await talk.turn(prompt_of(5), greedy(25))
        await all_free(engine)


async def test_forks_go_their_own_ways(engines: FaultyEngines) -> None:
    """Also from a turn that runs, and after the one that they came from has gone."""
    async with engines.engine(block_size=SIZE, enable_prefix_caching=False) as engine:
        talk = await conversation(engine)
        await talk.turn(prompt_of(1, 37), greedy(5))
        children = [await talk.forked() for _ in range(4)]
        families = [talk, *children, *[await child.forked() for child in children]]
        await asyncio.gather(*(one.turn(prompt_of(2, 9), seeded(number)) for number, one in enumerate(families)))
        assert all(one.cached == 37 + 4 for one in families)
        await talk.session.append(prompt_of(3), greedy(ENDLESS, output_kind=RequestOutputKind.DELTA))
        await anext(talk.session)
        running = await talk.session.fork()
        late = Conversation(running, context=running.context)
        talk.session.close()
        await late.turn(prompt_of(4), greedy())
        await asyncio.gather(*(one.turn(prompt_of(number), greedy(20)) for number, one in enumerate(families[1:])))
        for one in (*families[1:], late):
            one.session.close()
        await all_free(engine)


async def test_far_more_sessions_than_the_cache_holds(engines: FaultyEngines) -> None:
    count, each = 500, 4  # sessions, blocks of one
    pool = count // 10 * each
    async with engines.engine(block_size=SIZE, num_blocks_override=pool, step_seconds=0.0) as engine:
        talks = [await conversation(engine) for _ in range(count)]
        for turn in range(2):
            await asyncio.gather(*(talk.turn(prompt_of(number + turn, 25), greedy(5)) for number, talk in enumerate(talks)))
            now = await engine.describe()
            assert (now.sessions, now.running, now.waiting) == (count, 0, 0)
            assert count * 8 // 10 <= now.sessions_evicted < count
        for talk in talks:
            talk.session.close()
        await all_free(engine)


async def test_a_paused_engine_keeps_sessions(engines: FaultyEngines) -> None:
    """Their turns begin and go on when it is resumed."""
    async with engines.engine() as engine:
        idle, running, waiting = [await conversation(engine) for _ in range(3)]
        for talk in (idle, running, waiting):
            await talk.turn(prompt_of(1), greedy(5))
        await running.session.append(chunk := prompt_of(2), greedy(ENDLESS, output_kind=RequestOutputKind.DELTA))
        await anext(running.session)
        await engine.pause_generation("keep", clear_cache=False)
        asked = asyncio.ensure_future(waiting.turn(prompt_of(3), greedy(5)))
        await settled(engine, lambda now: now.waiting == 1)
        assert not asked.done()
        await engine.resume_generation()
        await asked
        running.session.interrupt(keep_tokens=0)
        while (await anext(running.session)).boundary is None:
            pass
        running.context += chunk
        for talk in (idle, running, waiting):
            await talk.turn(prompt_of(4), greedy(5))


async def test_pausing_lets_turns_end_first(engines: FaultyEngines) -> None:
    async with engines.engine() as engine:
        talk = await conversation(engine)
        params = greedy(50, output_kind=RequestOutputKind.DELTA)
        await talk.session.append(prompt_of(1), params)
        await anext(talk.session)
        await engine.pause_generation("wait")
        while (output := await anext(talk.session)).boundary is None:
            pass
        assert output.boundary.finish_reason == "length"
        talk.context = prompt_of(1) + tokens_of(prompt_of(1), params)[:-1]
        asked = asyncio.ensure_future(talk.turn(prompt_of(2), greedy(5)))
        await settled(engine, lambda now: now.waiting == 1)
        assert not asked.done()
        await engine.resume_generation()
        await asked


async def test_pausing_by_an_abort_ends_the_sessions_that_have_a_turn(engines: FaultyEngines) -> None:
    async with engines.engine() as engine:
        idle, running = [await conversation(engine) for _ in range(2)]
        await idle.turn(prompt_of(1), greedy(5))
        await running.session.append(prompt_of(2), greedy(ENDLESS, output_kind=RequestOutputKind.DELTA))
        await anext(running.session)
        await engine.pause_generation("abort")
        *_, last = [output async for output in running.session]
        assert (last.outputs[0].finish_reason, last.boundary, last.finished) == ("abort", None, True)
        with pytest.raises(RequestEnded):
            await running.session.append(prompt_of(3))
        await engine.resume_generation()
        await idle.turn(prompt_of(4), greedy(5))
        assert (await engine.describe()).sessions == 1


@pytest.mark.parametrize("preempt", [False, True])
async def test_a_reset_of_the_cache_takes_kv_from_sessions_only_if_told(engines: FaultyEngines, preempt: bool) -> None:
    async with engines.engine(block_size=SIZE) as engine:
        idle, running = [await conversation(engine) for _ in range(2)]
        await idle.turn(prompt_of(1, 40), greedy(5))
        await running.session.append(prompt_of(2), greedy(200, output_kind=RequestOutputKind.DELTA))
        await anext(running.session)
        await engine.reset_prefix_cache(reset_running_requests=preempt)
        assert (await engine.describe()).sessions_evicted == int(preempt)
        known = len(idle.context)
        await idle.turn(prompt_of(3, 40), greedy(5))
        assert idle.cached == (0 if preempt else known)
        while (await anext(running.session)).boundary is None:
            pass
        running.context = prompt_of(2) + tokens_of(prompt_of(2), greedy(200))[:-1]
        await running.turn(prompt_of(5), greedy(5))
        other = await conversation(engine)
        await other.turn(prompt_of(1, 40), greedy(5))
        # Nothing from before the reset is found, but what was computed again.
        assert other.cached == (40 // SIZE * SIZE if preempt else 0)


async def test_only_so_many_sessions_are_open(engines: FaultyEngines) -> None:
    async with engines.engine(max_sessions=2) as engine:
        first, second = [await conversation(engine) for _ in range(2)]
        with pytest.raises(TooManySessions, match="2 sessions are open"):
            await conversation(engine)
        with pytest.raises(TooManySessions, match="2 sessions are open"):
            await first.forked()
        second.session.close()
        await (await conversation(engine)).turn(prompt_of(1), greedy(5))
        await first.turn(prompt_of(1), greedy(5))


async def test_a_session_that_was_forgotten_ends_and_frees_its_blocks(engines: FaultyEngines) -> None:
    async with engines.engine() as engine:
        talk, other = await conversation(engine, idle_timeout=0.2), await conversation(engine)
        await talk.turn(prompt_of(1, 100), greedy(5))
        await other.turn(prompt_of(2), greedy(5))
        with pytest.raises(SessionTimeout, match=r"0\.2 s"):
            await anext(talk.session)
        with pytest.raises(SessionTimeout):
            await talk.session.append(prompt_of(2))
        await settled(engine, lambda now: now.sessions == 1)
        await other.turn(prompt_of(3), greedy(5))
        other.session.close()
        await all_free(engine)


@pytest.mark.parametrize("single", [False, True])
async def test_one_process_and_several(no_leaks: None, tiny: str, single: bool) -> None:
    """With a model, however small, whose answers a fresh request gives as well."""
    options = {"dtype": "float32", "num_threads": 1, "block_size": SIZE, "single_process": single}
    async with AsyncLLM.from_engine_args(model=tiny, **options) as engine:
        session = await engine.open_session(greedy(9))
        seeded_ones = seeded(3, 9, output_kind=RequestOutputKind.FINAL_ONLY)
        for number in range(4):
            await session.append(prompt_of(number))
            await anext(session)
            session.interrupt(keep_tokens=1)
            while (await anext(session)).boundary is None:
                pass
            prompt = [*session.context, *prompt_of(number + 1)]
            await session.append(prompt_of(number + 1), seeded_ones)
            in_session = await anext(session)
            (alone,) = [output async for output in engine.generate(prompt, seeded_ones)]
            assert in_session.prompt_token_ids == prompt
            assert in_session.outputs[0].token_ids == alone.outputs[0].token_ids
        session.close()
        await all_free(engine)
