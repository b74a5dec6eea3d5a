"""The load of `ringpost bench throughput`, `latency` and `growth`: streams that ask an engine, and batches that decode."""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..frontend.async_llm import AsyncLLM
from ..frontend.collector import RequestOutputCollector
from ..tasks import all_of
from .engine_report import Point
from .launch import BenchmarkError
from .recovery_streams import Stream, answers
from .step_phases import Breakdown, Look, breakdown

_WARM_UP_STREAMS, _WARM_UP_TOKENS = 8, 8


def engine_of(model: str, options: dict[str, Any]) -> AsyncLLM:
    """An engine in processes of its own. ValueError for an option that is wrong, or puts them all into one."""
    engine = AsyncLLM.from_engine_args(model=model, **options)
    if engine.config.runtime.single_process:
        raise ValueError("single_process must be false: what is measured is processes that work at the same time")
    return engine


async def engine_facts(engine: AsyncLLM) -> dict[str, str | float]:
    """What figures depend on: device, dtype and threads of the worker."""
    worker = (await engine.describe(workers=True)).workers[0]
    return {"device": worker.device, "dtype": worker.dtype, "threads": worker.num_threads}


@dataclass(frozen=True)
class Measured:
    """What a load came to."""

    streams: list[Stream]  # one a request
    rounds: list[float]  # seconds of each, from its first request to its last token
    breakdown: Breakdown  # of all rounds

    @property
    def tokens_per_second(self) -> float:
        """Of output, in all this time."""
        return sum(len(stream.tokens) for stream in self.streams) / sum(self.rounds)

    @property
    def first_tokens(self) -> list[float]:
        """Seconds to the first token of each request."""
        return [stream.times[0] - stream.began for stream in self.streams]

    @property
    def gaps(self) -> list[float]:
        """Seconds between two outputs of a request, of all of them."""
        return [after - before for stream in self.streams for before, after in pairwise(stream.times)]


class Load:
    """Asks an engine for greedy answers of a fixed length, to prompts of which no two begin alike."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._chooser = random.Random(0)

    async def measure(self, point: Point, rounds: int = 1) -> Measured:
        """Bear a load so many times after a short warm-up.

        Raises ValueError when its requests do not fit the model, BenchmarkError for an answer that ends too early, and
        what ends an engine or a request.
        """
        room = self._engine.config.checkpoint.max_model_len
        if point.input_len + point.output_len > room:
            got = f"{point.input_len} and {point.output_len}"
            raise ValueError(f"input_len and output_len must be at most {room} together with this model, got {got}")
        count = min(point.concurrency, _WARM_UP_STREAMS)
        await self._bear(Point(count, point.input_len, min(point.output_len, _WARM_UP_TOKENS), count))
        streams: list[Stream] = []
        seconds = []
        before = await self._look()
        for _ in range(rounds):
            began = time.monotonic()
            streams += await self._bear(point)
            seconds.append(time.monotonic() - began)
        alternating = not self._engine.config.scheduler.async_scheduling
        return Measured(streams, seconds, breakdown(before, await self._look(), alternating=alternating))

    async def decode_steps(self, count: int, context: int, steps: int, *, max_tokens: int) -> list[float]:
        """Seconds of decode steps of requests that run together, at most so many `steps` as each of the requests saw them.

        Their prompts have `context` tokens, and all are there before the first is computed. Only steps count in which no
        prompt is computed and no request is missing: `max_tokens`, after which a request ends, has to be enough for that.
        Raises BenchmarkError when there was no such step, and what ends an engine or a request.
        """
        batch, params = _Batch(count), answers(max_tokens)
        with ExitStack() as stack:
            await self._engine.pause_generation("keep")
            collectors = []
            for prompt in self._prompts(count, context):
                collectors.append(await self._engine.add_request(None, prompt, params))
                stack.callback(collectors[-1].close)
            await self._engine.resume_generation()
            seen = await all_of([batch.steps_of(collector, steps) for collector in collectors])
        found = [seconds for one in seen for seconds in one]
        if not found:
            raise BenchmarkError(f"{count} requests of {context} tokens never decoded together")
        return found

    def _prompts(self, count: int, length: int) -> list[list[int]]:
        vocab = range(self._engine.config.checkpoint.vocab_size)
        return [self._chooser.choices(vocab, k=length) for _ in range(count)]

    async def _bear(self, point: Point) -> list[Stream]:
        streams: list[Stream] = []
        waiting = iter(self._prompts(point.num_prompts, point.input_len))
        await all_of([self._ask_all(waiting, point.output_len, streams) for _ in range(point.concurrency)])
        return streams

    async def _ask_all(self, prompts: Iterator[list[int]], tokens: int, streams: list[Stream]) -> None:
        """One after the other, as long as there are prompts, which others take from as well."""
        params = answers(tokens)
        for prompt in prompts:
            stream = Stream(began=time.monotonic())
            streams.append(stream)
            async for output in self._engine.generate(prompt, params):
                stream.times.append(time.monotonic())
                stream.tokens += output.outputs[0].token_ids
            if len(stream.tokens) != tokens:
                reason = output.outputs[0].finish_reason
                raise BenchmarkError(f"an answer ended after {len(stream.tokens)} of {tokens} tokens, by {reason!r}")

    async def _look(self) -> Look:
        description = await self._engine.describe(workers=True)
        stats = self._engine.stats
        return Look(time.monotonic(), time.process_time(), stats.output_seconds, stats.generation_tokens, description)


class _Batch:
    """Requests that decode together: from when all have their first token, until one has ended."""

    def __init__(self, count: int) -> None:
        self._without_token = count
        self._has_ended = False

    async def steps_of(self, collector: RequestOutputCollector, most: int) -> list[float]:
        """Seconds of the steps that one request saw while all were together, of the first `most` of them."""
        found: list[float] = []
        before, together, finished = 0.0, False, False
        while len(found) < most and not finished:
            output = await collector.get()
            now, tokens = time.monotonic(), len(output.outputs[0].token_ids)
            if not before:
                self._without_token -= 1
            elif together:
                found += [(now - before) / tokens] * tokens  # an output holds several steps' when its consumer was late
            before, finished = now, output.finished
            self._has_ended |= finished
            together = not (self._without_token or self._has_ended)
        return found[:most]
