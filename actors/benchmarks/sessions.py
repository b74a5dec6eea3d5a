"""`ringpost bench sessions`: interruptions, long conversations and idle sessions, of a real engine with other work."""

import random
from collections.abc import Callable
from statistics import median
from typing import Any

from ..frontend.async_llm import AsyncLLM
from .mailbox import machine_facts
from .sessions_idle import measure_idle, pool_of
from .sessions_report import CHUNK_TOKENS, Growth, Interruptions, Report, Settings, Spread
from .sessions_talk import Interrupter, grow, rounds, streams_beside

MEASUREMENTS = 4
_STEP_TOKENS = 256  # a prompt of the streams holds nobody up for long


async def run_sessions_benchmark(settings: Settings, done: Callable[[], None]) -> Report:
    """Measure. Calls `done` after each of the MEASUREMENTS.

    Raises ValueError for a model or a value that cannot be used, BenchmarkError, and what ends an engine.
    """
    machine, chooser = machine_facts(), random.Random(0)
    async with _engine(settings, max_num_seqs=settings.streams + 1) as engine:
        _check_room(engine, settings)
        alone = _growth(0, await grow(engine, settings.chunks, chooser))
        done()
        async with streams_beside(engine, settings.streams):
            beside = _growth(settings.streams, await grow(engine, settings.chunks, chooser))
            done()
            interrupter = Interrupter(engine, chooser)
            for turns in rounds(settings.turns):
                await interrupter.converse(turns)
            done()
    async with _engine(settings, max_sessions=settings.idle, **pool_of(settings.idle_kv)) as engine:
        idle = await measure_idle(engine, settings.idle, chooser)
        done()
    return Report(
        benchmark="sessions",
        machine=machine,
        settings=settings,
        interruptions=Interruptions(silence=Spread.of(interrupter.silence), first_token=Spread.of(interrupter.first_token)),
        growth=[alone, beside],
        idle=idle,
    )


def _engine(settings: Settings, **options: Any) -> AsyncLLM:
    """Without a prefix cache, which would hide what sessions keep."""
    return AsyncLLM.from_engine_args(
        model=settings.model, enable_prefix_caching=False, max_num_batched_tokens=_STEP_TOKENS, **options
    )


def _check_room(engine: AsyncLLM, settings: Settings) -> None:
    room = engine.config.checkpoint.max_model_len // (CHUNK_TOKENS + 1) - 1
    if settings.chunks > room:
        raise ValueError(f"chunks must be at most {room} with this model, got {settings.chunks}")


def _growth(streams: int, seconds: list[float]) -> Growth:
    count = min(10, len(seconds) // 2)
    first, last = median(seconds[:count]), median(seconds[-count:])
    return Growth(streams=streams, first_token=seconds, first_median=first, last_median=last, ratio=last / first)
