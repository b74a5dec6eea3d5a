"""Sessions of the demo model: an answer is that of one request with the same tokens, whatever has been done to its session."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from demo_tokens import FRANCE_IDS
from fault_driver import BOTH, CORE, WORKER, Blow, FaultDriver, Stream
from msgspec.structs import replace
from prompts import fidelity_prompts

from ringpost import AsyncLLM, RequestOutputKind, SamplingParams, Session, StreamingInput

FULL = (50, 16)  # chunks, sessions at once
REDUCED = (8, 3)
SIZES = [
    pytest.param(REDUCED, id="reduced"),
    pytest.param(FULL, id="full", marks=[pytest.mark.long, pytest.mark.timeout(1200)]),
]

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"], loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(smollm2: str) -> AsyncIterator[AsyncLLM]:
    """Nothing is found in the cache, so that only sessions have KV before their turn."""
    options = {"dtype": "float32", "max_model_len": 1024, "num_threads": 1, "enable_prefix_caching": False}
    async with AsyncLLM.from_engine_args(model=smollm2, **options) as running:
        yield running


def greedy(count: int = 6, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **more)


def whole(params: SamplingParams) -> SamplingParams:
    return replace(params, output_kind=RequestOutputKind.FINAL_ONLY)


async def alone(engine: AsyncLLM, prompt: Sequence[int], params: SamplingParams) -> list[int]:
    """The answer of one request."""
    (output,) = [output async for output in engine.generate(list(prompt), whole(params))]
    return list(output.outputs[0].token_ids)


async def turn(session: Session, chunk: Sequence[int], params: SamplingParams, *, keep: bool = False) -> list[int]:
    """The answer to a chunk."""
    await session.append(list(chunk), whole(params), keep_last_token=keep)
    output = await anext(session)
    assert output.boundary is not None
    return list(output.outputs[0].token_ids)


async def check_next(engine: AsyncLLM, session: Session, params: SamplingParams | None = None) -> None:
    """The answer to the next chunk is that of a request with the context and that."""
    params, chunk = params or greedy(), FRANCE_IDS
    prompt = [*session.context, *chunk]
    assert await turn(session, chunk, params) == await alone(engine, prompt, params)


def chunks_of(number: int, count: int) -> list[list[int]]:
    """Chunks of 1 to 7 tokens, different for different numbers."""
    words = [token for prompt in fidelity_prompts(16) for token in prompt]
    starts = [(37 * number + 11 * index) % (len(words) - 8) for index in range(count)]
    return [words[start : start + 1 + (start + index) % 7] for index, start in enumerate(starts)]


@pytest.mark.parametrize("size", SIZES)
async def test_a_session_of_many_chunks_equals_one_request(engine: AsyncLLM, size: tuple[int, int]) -> None:
    """Alone and among others. Words come with answers of no or a few tokens, of which the last one stays or not."""
    count, sessions = size

    async def converse(number: int) -> tuple[list[int], list[int]]:
        async def inputs() -> AsyncIterator[StreamingInput]:
            for index, chunk in enumerate(chunks_of(number, count)):
                yield StreamingInput(chunk, whole(greedy(1 + index % 3)), keep_last_token=index % 2 == 1)
            yield StreamingInput(FRANCE_IDS, whole(greedy()))

        outputs = [output async for output in engine.generate(inputs()) if output.boundary is not None]
        assert [output.boundary and output.boundary.chunk for output in outputs] == [*range(count + 1)]
        return outputs[-1].prompt_token_ids, list(outputs[-1].outputs[0].token_ids)

    prompt, answer = await converse(0)
    assert answer == await alone(engine, prompt, greedy())
    together = await asyncio.gather(*map(converse, range(sessions)))
    assert together[0] == (prompt, answer)
    for prompt, answer in together[1:]:
        assert answer == await alone(engine, prompt, greedy())


async def test_a_turn_with_a_seed_draws_what_one_request_draws(engine: AsyncLLM) -> None:
    async with await engine.open_session() as session:
        await turn(session, FRANCE_IDS, greedy())
        await check_next(engine, session, SamplingParams(temperature=1.5, seed=11, max_tokens=8, ignore_eos=True))
        await check_next(engine, session, SamplingParams(temperature=1.5, top_k=40, seed=12, max_tokens=8, ignore_eos=True))


async def test_the_last_token_stays_by_choice(engine: AsyncLLM) -> None:
    async with await engine.open_session() as session:
        said = await turn(session, FRANCE_IDS, greedy(), keep=True)
        assert session.context == [*FRANCE_IDS, *said]
        await check_next(engine, session)


async def test_a_stop_string_is_not_in_the_context(engine: AsyncLLM) -> None:
    text = (await engine.token_texts(await alone(engine, FRANCE_IDS, greedy())))[3]
    async with await engine.open_session() as session:
        said = await turn(session, FRANCE_IDS, greedy(stop=text))
        assert said
        assert session.context == [*FRANCE_IDS, *said[:-1]]
        await check_next(engine, session)


@pytest.mark.parametrize("characters", [0, 9])
async def test_an_interrupted_answer_stays_as_far_as_it_was_heard(engine: AsyncLLM, characters: int) -> None:
    said = await alone(engine, FRANCE_IDS, greedy(8))
    texts = await engine.token_texts(said)
    heard = next(count for count in range(9) if len("".join(texts[: count + 1])) > characters)
    async with await engine.open_session() as session:
        await session.append(FRANCE_IDS, greedy(400, output_kind=RequestOutputKind.CUMULATIVE))
        while len((output := await anext(session)).outputs[0].text) < characters + 1:
            pass
        assert output.boundary is None
        assert session.interrupt(keep_chars=characters) == len(session.context)
        assert session.context == [*FRANCE_IDS, *said[:heard]]
        while (output := await anext(session)).boundary is None:
            pass
        assert output.boundary.finish_reason == "interrupt"
        await check_next(engine, session)


async def test_a_retracted_chunk_was_never_there(engine: AsyncLLM) -> None:
    async with await engine.open_session() as session:
        await turn(session, FRANCE_IDS, greedy())
        before = session.context
        await turn(session, [504, 582], greedy())
        assert session.retract() == len(before)
        assert session.context == before
        await check_next(engine, session)


async def test_a_fork_answers_as_a_session_of_its_own_with_its_seed(engine: AsyncLLM) -> None:
    seeded = SamplingParams(temperature=1.2, seed=1, max_tokens=6, ignore_eos=True)
    async with await engine.open_session(whole(seeded)) as parent:
        await turn(parent, FRANCE_IDS, greedy())
        prompt = [*parent.context, *FRANCE_IDS]
        children = [parent, *[await parent.fork(seed=seed) for seed in (2, 3)]]
        for child in children:
            await child.append(FRANCE_IDS)
        answers = [list((await anext(child)).outputs[0].token_ids) for child in children]
        for seed, answer in enumerate(answers, 1):
            assert answer == await alone(engine, prompt, replace(seeded, seed=seed))
        assert len({tuple(answer) for answer in answers}) == 3
        for child in children[1:]:
            child.close()


@pytest.mark.parametrize(
    "victims",
    [(CORE,), pytest.param((WORKER,), marks=pytest.mark.long), pytest.param(BOTH, marks=pytest.mark.long)],
    ids="+".join,
)
@pytest.mark.timeout(600)
async def test_deaths_change_no_answer(engine: AsyncLLM, victims: tuple[str, ...]) -> None:
    """Neither that of a turn that runs, nor that of a session which is idle."""
    async with await engine.open_session() as running, await engine.open_session() as idle:
        for session in (running, idle):
            await turn(session, FRANCE_IDS, greedy())
        prompt, told = [*running.context, *FRANCE_IDS], list[int]()
        await running.append(FRANCE_IDS, greedy(12, output_kind=RequestOutputKind.DELTA))
        with FaultDriver(engine, [Blow(4, victims)]) as driver:
            driver.began(stream := Stream())
            boundary = None
            while boundary is None:
                output = await anext(running)
                told += output.outputs[0].token_ids
                boundary = output.boundary
                driver.received(stream, len(output.outputs[0].token_ids))
            assert {struck.actor for struck in driver.log if struck.unfinished} == set(victims)
        assert told == await alone(engine, prompt, greedy(12))
        await check_next(engine, running)
        await check_next(engine, idle)
