"""`ringpost bench recovery`: what users of an engine see when its processes die. Streams run undisturbed, then once a fault."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import CRITICAL
from statistics import median
from typing import Any

from ..frontend.async_llm import AsyncLLM
from ..logs import logger
from .mailbox import machine_facts
from .recovery_report import UNDISTURBED, Overhead, Report, Result, Settings
from .recovery_run import Run
from .recovery_streams import tokens_per_second

_STEP_TOKENS = 256  # a step has to take far less than hang_timeout


async def run_recovery_benchmark(settings: Settings, folder: str, done: Callable[[], None]) -> Report:
    """Measure. Calls `done` after each of the `1 + len(faults) + 2 * overhead` runs. `folder` is for post-mortems.

    Raises ValueError for a model or a value that cannot be used, BenchmarkError, and EngineDeadError when the engine gives up.
    """
    machine = machine_facts()
    with _unlogged():
        results, pids = await _strike(settings, folder, done)
        left = sum(map(_is_left, pids))
        overhead = await _overhead(settings, folder, done) if settings.overhead else None
    return Report(
        benchmark="recovery",
        machine=machine,
        settings=settings,
        results=results,
        processes_seen=len(pids),
        processes_left=left,
        overhead=overhead,
    )


async def _strike(settings: Settings, folder: str, done: Callable[[], None]) -> tuple[list[Result], set[int]]:
    """The results, and the processes that the engine had, which has ended."""
    runs: list[Run] = []
    async with _engine(settings, folder) as engine:
        for fault in (UNDISTURBED, *settings.faults):
            run = Run(engine, fault)
            await run.measure(settings.streams, settings.tokens)
            runs.append(run)
            done()
    return [run.result(runs[0].streams) for run in runs], set().union(*(run.pids for run in runs))


async def _overhead(settings: Settings, folder: str, done: Callable[[], None]) -> Overhead:
    """Undisturbed runs of two engines by turns. Which comes first alternates too, so that drift disturbs both alike."""
    without: list[float] = []
    with_restarts: list[float] = []
    async with _engine(settings, folder, max_restarts=0) as fragile, _engine(settings, folder) as lasting:
        turn = [(fragile, without), (lasting, with_restarts)]
        for _ in range(settings.overhead):
            for engine, rates in turn:
                run = Run(engine, UNDISTURBED)
                await run.measure(settings.streams, settings.tokens)
                rates.append(tokens_per_second(run.streams))
                done()
            turn.reverse()
    ratio = median(with_restarts) / median(without)
    return Overhead(without_restarts=without, with_restarts=with_restarts, ratio=ratio)


def _engine(settings: Settings, folder: str, **options: Any) -> AsyncLLM:
    """An engine in which a request's tokens do not depend on what runs beside it, and in which all run at once."""
    seqs = settings.streams + 1
    return AsyncLLM.from_engine_args(
        model=settings.model,
        dtype="float32",
        hang_timeout=settings.hang_timeout,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, _STEP_TOKENS),
        postmortem_dir=folder,
        **options,
    )


def _is_left(pid: int) -> bool:
    """Whether a process that this one has started runs still, or was not reaped."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


@contextmanager
def _unlogged() -> Iterator[None]:
    """Deaths are no news here."""
    before = logger.level
    logger.setLevel(CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
