"""`ringpost bench growth`: how a decode step grows with the requests at once, and with the context of one."""

from collections.abc import Callable

from .decode_room import BATCH_CONTEXT, Room
from .engine_load import Load, engine_facts, engine_of
from .engine_report import GrowthReport, GrowthSettings, StepTime
from .mailbox import machine_facts
from .sessions_report import Spread

_WARM_UP_STEPS = 8


async def run_growth_benchmark(settings: GrowthSettings, done: Callable[[], None]) -> GrowthReport:
    """Measure. Calls `done` after each batch size and each context.

    Raises ValueError for a model or a value that cannot be used, before anything is measured; BenchmarkError, and what ends an
    engine or a request.
    """
    machine = machine_facts()
    async with engine_of(settings.model, settings.options) as engine:
        room = Room(engine.config, (await engine.describe()).num_blocks)
        room.check(settings)
        machine |= await engine_facts(engine)
        load = Load(engine)

        async def measure(count: int, context: int, steps: int) -> list[float]:
            return await load.decode_steps(count, context, steps, max_tokens=room.max_tokens(count, context, steps))

        async def series(points: list[tuple[int, int]]) -> list[StepTime]:
            found: list[StepTime] = []
            for count, context in points:
                seconds = [one for _ in range(settings.repeat) for one in await measure(count, context, settings.output_len)]
                found.append(_step_time(count, context, seconds, found[:1]))
                done()
            return found

        await measure(settings.batch_sizes[0], BATCH_CONTEXT, min(settings.output_len, _WARM_UP_STEPS))
        by_batch_size = await series([(count, BATCH_CONTEXT) for count in settings.batch_sizes])
        by_context = await series([(1, context) for context in settings.contexts])
    return GrowthReport(benchmark="growth", machine=machine, settings=settings, batch_sizes=by_batch_size, contexts=by_context)


def _step_time(count: int, context: int, seconds: list[float], first: list[StepTime]) -> StepTime:
    step = Spread.of(seconds)
    return StepTime(
        batch_size=count,
        context=context,
        step=step,
        tokens_per_second=count / step.p50,
        ratio=step.p50 / (first[0].step if first else step).p50,
    )
