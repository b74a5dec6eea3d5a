"""However a request is scheduled, it gets the same tokens: the real model in float32, greedy and with seeds."""

import asyncio
import random
from typing import Any

import pytest

from ringpost import AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams

FULL = (32, 32)  # requests, tokens of each answer
REDUCED = (6, 12)
LENGTHS = (1, 16, 40, 65, 2, 17, 31, 5, 15, 32, 33, 8)
PLAIN = {"enable_prefix_caching": False, "async_scheduling": False}
FEW_BLOCKS = {"block_size": 4, "num_blocks_override": 25}  # so that most requests are preempted; the longest just fits
# What the schedule depends on, and nothing else may.
SCHEDULES: dict[str, dict[str, Any]] = {
    "a budget of 64": {**PLAIN, "max_num_batched_tokens": 64},
    "a budget of 16": {**PLAIN, "max_num_batched_tokens": 16},
    "a step ahead": {**PLAIN, "async_scheduling": True},
    "long prompts in pieces": {**PLAIN, "long_prefill_token_threshold": 12},
    "few blocks": {**PLAIN, **FEW_BLOCKS},
    "few blocks, a step ahead": {**PLAIN, **FEW_BLOCKS, "async_scheduling": True, "max_num_batched_tokens": 64},
    "a prefix cache": {},
    "all at once": {**FEW_BLOCKS, "async_scheduling": True, "max_num_batched_tokens": 64},
}
BRIEFLY = ("few blocks, a step ahead",)
RUNS = [pytest.param(schedule, REDUCED, id=f"{schedule}, reduced") for schedule in BRIEFLY]
RUNS += [pytest.param(schedule, FULL, id=schedule, marks=pytest.mark.long) for schedule in SCHEDULES]
Answers = list[tuple[list[int], list[int]]]

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # which the tokens do not depend on


def prompts_of(count: int) -> list[list[int]]:
    """Random words, each prompt its own; the lengths lie around the borders of blocks and steps."""
    chooser = random.Random(11)
    return [[chooser.randrange(1000, 48000) for _ in range(LENGTHS[index % len(LENGTHS)])] for index in range(count)]


async def answer(engine: AsyncLLM, prompt: list[int], params: SamplingParams) -> RequestOutput:
    *_, output = [output async for output in engine.generate(prompt, params)]
    assert output.finished
    return output


async def answers(engine: AsyncLLM, size: tuple[int, int]) -> tuple[Answers, list[int]]:
    """(greedy and seeded tokens, prompt tokens found in the cache) of every prompt, all at once."""
    count, length = size
    options: dict[str, Any] = {"max_tokens": length, "ignore_eos": True, "output_kind": RequestOutputKind.FINAL_ONLY}
    prompts = prompts_of(count)
    greedy, seeded = SamplingParams(temperature=0, **options), SamplingParams(temperature=1, seed=5, **options)
    outputs = await asyncio.gather(*(answer(engine, prompt, params) for prompt in prompts for params in (greedy, seeded)))
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    assert all(len(answer) == length for answer in tokens)
    return list(zip(tokens[::2], tokens[1::2], strict=True)), [output.num_cached_tokens for output in outputs]


def engine_with(**options: Any) -> AsyncLLM:
    return AsyncLLM.from_engine_args(dtype="float32", max_model_len=512, num_threads=1, **options)


@pytest.fixture(scope="module")
def plain() -> dict[tuple[int, int], Answers]:
    """What an engine with room for everything answers, by size; asked once."""
    return {}


async def expected(plain: dict[tuple[int, int], Answers], size: tuple[int, int]) -> Answers:
    if size not in plain:
        async with engine_with(**PLAIN) as engine:
            plain[size], cached = await answers(engine, size)
            load = engine.load()
        assert load is not None
        assert (load.preemptions, sum(cached)) == (0, 0)
    return plain[size]


@pytest.mark.parametrize(("schedule", "size"), RUNS)
async def test_the_schedule_changes_no_token(
    no_leaks: None, plain: dict[tuple[int, int], Answers], schedule: str, size: tuple[int, int]
) -> None:
    wanted = await expected(plain, size)
    options = SCHEDULES[schedule]
    caching = "enable_prefix_caching" not in options
    async with engine_with(**options) as engine:
        cold, _ = await answers(engine, size)
        assert cold == wanted
        if caching:
            warm, cached = await answers(engine, size)
            assert warm == wanted
            prompts = [prompt for prompt in prompts_of(size[0]) for _ in range(2)]
            assert all(found < len(prompt) for found, prompt in zip(cached, prompts, strict=True))
            assert sum(cached) > 0
        load = engine.load()
    assert load is not None
    assert (load.running, load.waiting, load.used_blocks) == (0, 0, 0)
    if "num_blocks_override" in options:
        assert load.preemptions > (size[0] if size == FULL else 0)  # of twice as many requests
