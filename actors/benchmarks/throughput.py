"""`ringpost bench throughput`: tokens a second and waits of an engine under several loads, and where its steps' time goes."""

from collections.abc import Callable

from .engine_load import Load, engine_facts, engine_of
from .engine_report import Point, Throughput, ThroughputReport, ThroughputSettings
from .mailbox import machine_facts
from .sessions_report import Spread

_CONCURRENCY, _INPUT_LEN, _OUTPUT_LEN = (1, 8, 32), 128, 128
_MANY = Point(64, 32, 64, 128)  # short requests
_LEAST_PROMPTS, _ROUNDS = 4, 2


def points_of(
    concurrency: list[int] | None, input_len: int | None, output_len: int | None, num_prompts: int | None
) -> list[Point]:
    """The loads to measure, where None is what nobody has asked for."""
    points = [
        Point(
            count,
            _INPUT_LEN if input_len is None else input_len,
            _OUTPUT_LEN if output_len is None else output_len,
            max(_LEAST_PROMPTS, _ROUNDS * count) if num_prompts is None else num_prompts,
        )
        for count in concurrency or _CONCURRENCY
    ]
    if concurrency is None and input_len is None and output_len is None and num_prompts is None:
        points.append(_MANY)
    return points


async def run_throughput_benchmark(settings: ThroughputSettings, done: Callable[[], None]) -> ThroughputReport:
    """Measure. Calls `done` after each of the points.

    Raises ValueError for a model or a value that cannot be used, BenchmarkError, and what ends an engine or a request.
    """
    machine, results = machine_facts(), []
    async with engine_of(settings.model, settings.options) as engine:
        machine |= await engine_facts(engine)
        load = Load(engine)
        for point in settings.points:
            found = await load.measure(point)
            results.append(
                Throughput(
                    point=point,
                    seconds=sum(found.rounds),
                    tokens_per_second=found.tokens_per_second,
                    first_token=Spread.of(found.first_tokens),
                    inter_token=Spread.of(found.gaps),
                    breakdown=found.breakdown,
                )
            )
            done()
    return ThroughputReport(benchmark="throughput", machine=machine, settings=settings, results=results)
