"""Priority, salt, hits and resets as a program sees them, on an engine within this process."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from ringpost import AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams
from ringpost.actors.errors import EngineDeadError
from ringpost.ipc.messages.errors import ParameterError

SIZE = 16
PROMPT = list(range(100, 100 + 2 * SIZE + 1))  # two full blocks, and the token that is always computed
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


def engine_of(model: str, **options: Any) -> AsyncLLM:
    return AsyncLLM.from_engine_args(model=model, single_process=True, num_threads=1, block_size=SIZE, **options)


@pytest_asyncio.fixture
async def engine(tiny: str) -> AsyncIterator[AsyncLLM]:
    async with engine_of(tiny) as running:
        yield running


async def outputs_of(
    engine: AsyncLLM, kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY, **options: Any
) -> list[RequestOutput]:
    params = SamplingParams(max_tokens=4, output_kind=kind, **GREEDY)
    return [output async for output in engine.generate(PROMPT, params, **options)]


async def found(engine: AsyncLLM, **options: Any) -> int:
    """Prompt tokens that a request found in the cache."""
    (output,) = await outputs_of(engine, **options)
    return output.num_cached_tokens


async def test_every_output_tells_the_hits(engine: AsyncLLM) -> None:
    assert await found(engine) == 0
    for kind in RequestOutputKind:
        outputs = await outputs_of(engine, kind)
        assert {output.num_cached_tokens for output in outputs} == {2 * SIZE}
    load = engine.load()
    assert load is not None
    count = 1 + len(RequestOutputKind)
    assert (load.prefix_queries, load.prefix_hits) == (count * len(PROMPT), (count - 1) * 2 * SIZE)


async def test_prefixes_are_shared_under_an_equal_salt_only(engine: AsyncLLM) -> None:
    salts = [None, "mine", "yours", "mine", None]
    assert [await found(engine, cache_salt=salt) for salt in salts] == [0, 0, 0, 2 * SIZE, 2 * SIZE]


async def test_without_a_prefix_cache_nothing_is_found(tiny: str) -> None:
    async with engine_of(tiny, enable_prefix_caching=False) as engine:
        assert [await found(engine) for _ in range(2)] == [0, 0]
        await engine.reset_prefix_cache()
        assert await found(engine, cache_salt="mine") == 0


async def test_after_a_reset_nothing_is_found(engine: AsyncLLM) -> None:
    for arguments in ((), (False,), (True,), ("all",)):
        assert await found(engine) == 0
        assert await found(engine) == 2 * SIZE
        await engine.reset_prefix_cache(*arguments)


@pytest.mark.parametrize("running", [False, True])
async def test_a_reset_changes_no_answer_under_way(engine: AsyncLLM, running: bool) -> None:
    params = SamplingParams(max_tokens=200, output_kind=RequestOutputKind.DELTA, **GREEDY)
    alone = [token async for output in engine.generate(PROMPT, params) for token in output.outputs[0].token_ids]
    await engine.reset_prefix_cache()
    tokens: list[int] = []
    resets = 0
    async for output in engine.generate(PROMPT, params):
        tokens += output.outputs[0].token_ids
        if len(tokens) >= 20 * (resets + 1) and not output.finished:
            await engine.reset_prefix_cache(reset_running_requests=running)
            resets += 1
    assert resets > 1
    assert tokens == alone


async def test_a_wrong_priority_or_salt_is_refused_before_anything_is_sent(engine: AsyncLLM) -> None:
    for field, value in (("priority", 3), ("priority", "3"), ("cache_salt", ""), ("cache_salt", 5)):
        with pytest.raises(ParameterError, match=rf"^{field} must .*got ") as caught:
            await found(engine, **{field: value})
        assert caught.value.parameter == field
    assert engine.num_unfinished_requests == 0
    assert sum(engine.stats.finished.values()) == 0
    assert await found(engine, priority=0, cache_salt=None) == 0


async def test_priorities_are_taken_under_their_policy(tiny: str) -> None:
    async with engine_of(tiny, scheduling_policy="priority") as engine:
        assert [await found(engine, priority=priority) for priority in (-(2**63), 0, 2**63 - 1)] == [0, 2 * SIZE, 2 * SIZE]


async def test_a_dead_engine_resets_nothing(tiny: str) -> None:
    engine = engine_of(tiny)
    await engine.start()
    await engine.shutdown()
    with pytest.raises(EngineDeadError):
        await engine.reset_prefix_cache()
