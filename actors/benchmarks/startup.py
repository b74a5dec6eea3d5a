"""`ringpost bench startup`: how soon `ringpost serve` is healthy, where the time goes, and what memory it takes."""

from collections.abc import Callable
from statistics import median

import msgspec

from .mailbox import machine_facts
from .startup_server import Start, measure_start


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to start, and how often."""

    model: str
    repeats: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run has found."""

    benchmark: str
    machine: dict[str, str | float]
    settings: Settings
    healthy_median: float  # seconds from exec to the status 200 of /health
    starts: list[Start]  # without one before them, which only fills caches


def run_startup_benchmark(settings: Settings, done: Callable[[], None]) -> Report:
    """Start the server so often, and once before. Calls `done` after each start. Raises BenchmarkError."""
    machine, starts = machine_facts(), []
    for _ in range(1 + settings.repeats):
        starts.append(measure_start(settings.model))
        done()
    warm = starts[1:]
    return Report(
        benchmark="startup",
        machine=machine,
        settings=settings,
        healthy_median=median(start.healthy for start in warm),
        starts=warm,
    )
