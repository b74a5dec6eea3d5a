"""`ringpost bench latency`: how long one batch of requests takes, and each of its steps, and where their time goes."""

from collections.abc import Callable
from statistics import mean

from .engine_load import Load, engine_facts, engine_of
from .engine_report import LatencyReport, LatencySettings, Point
from .mailbox import machine_facts
from .sessions_report import Spread


async def run_latency_benchmark(settings: LatencySettings, done: Callable[[], None]) -> LatencyReport:
    """Measure. Calls `done` once.

    Raises ValueError for a model or a value that cannot be used, BenchmarkError, and what ends an engine or a request.
    """
    machine, count = machine_facts(), settings.batch_size
    async with engine_of(settings.model, settings.options) as engine:
        machine |= await engine_facts(engine)
        batch = Point(count, settings.input_len, settings.output_len, count)
        found = await Load(engine).measure(batch, settings.repeat)
        done()
    return LatencyReport(
        benchmark="latency",
        machine=machine,
        settings=settings,
        batches=found.rounds,
        mean=mean(found.rounds),
        batch=Spread.of(found.rounds),
        first_token=Spread.of(found.first_tokens),
        step=Spread.of(found.gaps),
        tokens_per_second=found.tokens_per_second,
        breakdown=found.breakdown,
    )
