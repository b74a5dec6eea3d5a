"""What users see of scheduling: block borders, small caches, priorities, and long prompts beside running answers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ringpost import AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams
from ringpost.ipc.messages.errors import ParameterError

pytestmark = [pytest.mark.asyncio(loop_factories=["uvloop"]), pytest.mark.usefixtures("no_leaks")]


def greedy(count: int) -> SamplingParams:
    kind = RequestOutputKind.FINAL_ONLY
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, output_kind=kind)


async def answer(engine: AsyncLLM, prompt: Sequence[int], count: int, **options: Any) -> RequestOutput:
    (output,) = [output async for output in engine.generate(list(prompt), greedy(count), **options)]
    assert len(output.outputs[0].token_ids) == count
    return output


def tokens(output: RequestOutput) -> list[int]:
    return list(output.outputs[0].token_ids)


@pytest.mark.long
async def test_prompts_at_the_borders_of_blocks() -> None:
    """A prompt that is cached whole still has a token to compute."""
    options = {"dtype": "float32", "max_model_len": 128, "num_threads": 1, "block_size": 16}
    async with AsyncLLM.from_engine_args(**options) as engine:
        for length in (16, 17, 33):
            prompt = [504, *[582] * (length - 1)]
            await engine.reset_prefix_cache()
            alone = [await answer(engine, prompt, 4) for _ in range(3)]
            together = await asyncio.gather(*(answer(engine, prompt, 4) for _ in range(3)))
            assert len({tuple(tokens(output)) for output in (*alone, *together)}) == 1
            most = (length - 1) // 16 * 16
            assert [output.num_cached_tokens for output in (*alone, *together)] == [0, *[most] * 5]


async def test_what_never_fits_is_refused_and_holds_up_nobody(tiny: str) -> None:
    options = {"num_blocks_override": 8, "block_size": 16, "max_model_len": 512, "num_threads": 1}
    async with AsyncLLM.from_engine_args(model=tiny, **options) as engine:
        with pytest.raises(ParameterError, match="8 blocks of 16"):
            await answer(engine, range(10, 210), 8)
        long = [output async for output in engine.generate(list(range(10, 110)), greedy(200))]
        short = await answer(engine, [10, 11], 4)
        assert long[-1].outputs[0].finish_reason == "length"
        assert len(tokens(long[-1])) == 8 * 16 + 1 - 100
        assert tokens(short)
        load = engine.load()
        assert load is not None
        assert (load.running, load.waiting, load.used_blocks) == (0, 0, 0)


async def test_a_better_priority_comes_first_and_equal_ones_in_order(tiny: str) -> None:
    options = {"scheduling_policy": "priority", "max_num_seqs": 1, "num_threads": 1}
    done: list[str] = []

    async def ask(name: str, priority: int) -> None:
        await answer(engine, [len(name)] * 5, 20, priority=priority)
        done.append(name)

    async with AsyncLLM.from_engine_args(model=tiny, **options) as engine, asyncio.TaskGroup() as group:
        params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        first = engine.generate([5, 6, 7], params, priority=10)
        await anext(first)  # it runs
        for number in range(1, 5):
            group.create_task(ask(f"low {number}", 10))
        group.create_task(ask("high", 0))
        *_, last = [output async for output in first]
        assert len(last.outputs[0].token_ids) == 200
        assert done == ["high"], "it took the place of the one that ran, which then came before those that had arrived after it"
    assert done == ["high", *(f"low {number}" for number in range(1, 5))]


@pytest.mark.long
async def test_requests_of_all_priorities_get_the_tokens_they_get_alone(tiny: str) -> None:
    options = {"scheduling_policy": "priority", "dtype": "float32", "block_size": 16, "num_threads": 1}
    prompts = [[20 + number] * (5 + number) for number in range(9)]
    async with AsyncLLM.from_engine_args(model=tiny, **options, max_num_seqs=1) as engine:
        alone = [tokens(await answer(engine, prompt, 60)) for prompt in prompts]
    async with AsyncLLM.from_engine_args(model=tiny, **options, max_num_seqs=4, num_blocks_override=10) as engine:
        asked = [answer(engine, prompt, 60, priority=number % 3 * 5) for number, prompt in enumerate(prompts)]
        together = [tokens(output) for output in await asyncio.gather(*asked)]
        load = engine.load()
    assert together == alone
    assert load is not None
    assert load.preemptions > 0


@pytest.mark.parametrize("ahead", [False, True])
async def test_running_answers_go_on_while_long_prompts_are_computed(tiny: str, ahead: bool) -> None:
    options = {"max_num_batched_tokens": 16, "num_threads": 1, "async_scheduling": ahead}
    params = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    received = [0] * 4

    async def stream(number: int, running: asyncio.Event) -> None:
        async for output in engine.generate([30 + number] * 3, params):
            received[number] += len(output.outputs[0].token_ids)
            running.set()

    async with AsyncLLM.from_engine_args(model=tiny, **options) as engine, asyncio.TaskGroup() as group:
        events = [asyncio.Event() for _ in received]
        streams = [group.create_task(stream(number, event)) for number, event in enumerate(events)]
        for event in events:
            await event.wait()
        before = list(received)
        await asyncio.gather(*(answer(engine, [50 + number] * 300, 1) for number in range(4)))
        # A step holds 4 tokens of the streams, which leaves 12 for 300 of the first prompt.
        assert all(now - then >= 24 for now, then in zip(received, before, strict=True))
        assert not all(task.done() for task in streams)
    assert received == [150] * 4
