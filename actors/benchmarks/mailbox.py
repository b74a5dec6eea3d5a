"""`ringpost bench mailbox`: Ringpost's mailboxes and their alternatives, measured turn by turn, as a report."""

import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from statistics import median

import msgspec

from .driver import Job
from .launch import measure
from .measurements import MEASUREMENTS, Figures
from .messages import SIZES
from .transport import TRANSPORTS

OURS, THEIRS = "ringpost", "zmq"  # what the ratios compare


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and how long. The lists hold keys of MEASUREMENTS, TRANSPORTS and SIZES."""

    seconds: float  # measured for each figure, in all its repeats
    repeat: int
    measurements: list[str]
    transports: list[str]
    sizes: list[str]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one transport. Each is the median of that figure in the repeats."""

    measurement: str
    size: int  # bytes
    transport: str
    figures: Figures
    repeats: list[Figures]


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Ringpost's first figure divided by that of zmq.asyncio."""

    measurement: str
    size: int
    figure: str
    ratio: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run has found."""

    benchmark: str
    machine: dict[str, str | float]
    settings: Settings
    left_out: dict[str, str]  # transport -> why
    results: list[Result]
    ratios: list[Ratio]


Key = tuple[str, str, str]  # measurement, size, transport


def plan(settings: Settings) -> list[Key]:
    """What is measured in each repeat. Transports take turns, so that what disturbs the machine disturbs all alike."""
    return [
        (measurement, size, transport)
        for measurement in settings.measurements
        for size in settings.sizes
        for transport in settings.transports
        if TRANSPORTS[transport].can_spin or not MEASUREMENTS[measurement].spin
    ]


def run_mailbox_benchmark(settings: Settings, left_out: dict[str, str], done: Callable[[], None]) -> Report:
    """Measure. Calls `done` after each of the `repeat * len(plan(settings))` measurements. Raises BenchmarkError."""
    keys = plan(settings)
    machine = machine_facts()
    repeats: dict[Key, list[Figures]] = {key: [] for key in keys}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for _ in range(settings.repeat):
            for key in keys:
                measurement, size, transport = key
                with tempfile.TemporaryDirectory(dir=folder) as own:
                    seconds = settings.seconds / settings.repeat
                    repeats[key].append(measure(Job(transport, measurement, SIZES[size], seconds, own)))
                done()
    results = [_result(key, found) for key, found in repeats.items()]
    return Report(
        benchmark="mailbox",
        machine=machine,
        settings=settings,
        left_out=left_out,
        results=results,
        ratios=list(_ratios(results)),
    )


def _result(key: Key, repeats: list[Figures]) -> Result:
    measurement, size, transport = key
    figures = {name: median(figures[name] for figures in repeats) for name in repeats[0]}
    return Result(measurement=measurement, size=SIZES[size], transport=transport, figures=figures, repeats=repeats)


def _ratios(results: list[Result]) -> Iterator[Ratio]:
    theirs = {(result.measurement, result.size): result for result in results if result.transport == THEIRS}
    for result in results:
        other = theirs.get((result.measurement, result.size))
        if result.transport == OURS and other is not None:
            figure, value = next(iter(result.figures.items()))
            yield Ratio(measurement=result.measurement, size=result.size, figure=figure, ratio=value / other.figures[figure])


def machine_facts() -> dict[str, str | float]:
    """What figures depend on: processors, what they do already, system, versions."""
    facts: dict[str, str | float] = {
        "cpu_count": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    for package in ("ringpost", "msgspec", "uvloop", "pyzmq"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "not installed"
    return facts
