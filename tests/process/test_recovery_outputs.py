"""What a death must not change in what outputs say: logprobs, stop strings, several answers, and a pause that lasts."""

import asyncio
from itertools import chain
from typing import Any

import pytest
from fault_driver import BOTH, CORE, WORKER, Blow, FaultDriver, Stream
from faulty_engines import FaultyEngines, prompt_of
from scripted_worker import said_of, tokens_of

from ringpost import AsyncLLM, CompletionOutput, RequestOutput, RequestOutputKind, SamplingParams

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

BLOWS = [Blow(20, (WORKER,)), Blow(20, (CORE,)), Blow(20, BOTH)]
LONG = 40


async def followed(engine: AsyncLLM, driver: FaultDriver, prompt: list[int], params: SamplingParams) -> list[RequestOutput]:
    """All outputs of a request, whose tokens the driver counts."""
    outputs, stream = [], Stream()
    driver.began(stream)
    async for output in engine.generate(prompt, params):
        outputs.append(output)
        driver.received(stream, sum(len(one.token_ids) for one in output.outputs))
    driver.ended(stream)
    return outputs


def answers(outputs: list[RequestOutput], index: int = 0) -> list[CompletionOutput]:
    return [one for output in outputs for one in output.outputs if one.index == index]


def joined(parts: list[CompletionOutput], field: str) -> list[Any]:
    return list(chain(*(getattr(part, field) for part in parts)))


async def test_logprobs_of_answer_and_prompt(engines: FaultyEngines) -> None:
    params = SamplingParams(
        seed=3, max_tokens=LONG, ignore_eos=True, logprobs=2, prompt_logprobs=2, output_kind=RequestOutputKind.DELTA
    )
    prompts = [prompt_of(number, 40) for number in range(4)]
    async with engines.engine(max_num_batched_tokens=16) as engine:
        with FaultDriver(engine, BLOWS) as driver:
            streams = await asyncio.gather(*(followed(engine, driver, prompt, params) for prompt in prompts))
            assert not driver.left
    for prompt, outputs in zip(prompts, streams, strict=True):
        tokens = joined(answers(outputs), "token_ids")
        assert tokens == tokens_of(prompt, params)
        assert [place[token].logprob for place, token in zip(joined(answers(outputs), "logprobs"), tokens, strict=True)] == [
            one.logprob for one in said_of(prompt, tokens, 2)
        ]
        told = outputs[0].prompt_logprobs
        assert told is not None
        assert told[0] is None
        assert [place[token].logprob for place, token in zip(told, prompt, strict=True) if place] == [
            one.logprob for one in said_of(prompt[:1], prompt[1:], 2)
        ]
        assert all(output.prompt_logprobs is None for output in outputs[1:])


@pytest.mark.long
async def test_a_stop_string_on_both_sides_of_a_death(engines: FaultyEngines) -> None:
    plain = SamplingParams(seed=5, max_tokens=LONG, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    prompt = prompt_of(1)
    async with engines.engine() as engine:
        with FaultDriver(engine, []) as driver:
            text = "".join(joined(answers(await followed(engine, driver, prompt, plain)), "text"))
        place = next(end for end in range(20, len(text) - 3) if text.find(text[end : end + 3]) == end)
        stop = text[place : place + 3]
        params = SamplingParams(seed=5, max_tokens=LONG, ignore_eos=True, output_kind=RequestOutputKind.DELTA, stop=[stop])
        with FaultDriver(engine, [Blow(10, (CORE,))]) as driver:
            parts = answers(await followed(engine, driver, prompt, params))
            assert not driver.left
        assert ("".join(joined(parts, "text")), parts[-1].stop_reason) == (text[:place], stop)
        numbers = await engine.describe()
        assert (numbers.running, numbers.waiting) == (0, 0)


async def test_several_answers_to_one_prompt(engines: FaultyEngines) -> None:
    params = SamplingParams(n=3, seed=7, max_tokens=LONG, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    prompts = [prompt_of(number, length) for number, length in ((1, 5), (2, 32), (3, 40))]
    async with engines.engine() as engine:
        with FaultDriver(engine, [Blow(2, (CORE,)), *BLOWS]) as driver:
            streams = await asyncio.gather(*(followed(engine, driver, prompt, params) for prompt in prompts))
            assert not driver.left
    for prompt, outputs in zip(prompts, streams, strict=True):
        for index in range(3):
            alone = SamplingParams(seed=7 + index, max_tokens=LONG, ignore_eos=True)
            assert joined(answers(outputs, index), "token_ids") == tokens_of(prompt, alone)


async def test_a_pause_lasts_over_a_death(engines: FaultyEngines) -> None:
    params = SamplingParams(seed=1, max_tokens=LONG, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    prompt = prompt_of(1)
    async with engines.engine() as engine:
        collector = await engine.add_request(None, prompt, params)
        tokens = list((await collector.get()).outputs[0].token_ids)
        await engine.pause_generation("keep")
        if (more := collector.get_nowait()) is not None:
            tokens += more.outputs[0].token_ids
        with FaultDriver(engine, []) as driver:
            driver.strike(Blow(0, BOTH))
        assert await engine.is_paused()
        assert collector.get_nowait() is None
        await engine.resume_generation()
        while len(tokens) < LONG:
            tokens += (await collector.get()).outputs[0].token_ids
        assert tokens == tokens_of(prompt, params)
