"""StatsLog: a line on what the engine has done lately, for people who read logs."""

import asyncio
import logging
import time
from collections.abc import Callable

from ...ipc.messages.load import LoadStats
from ..logs import logger
from .stats import FrontendStats

INTERVAL_SECONDS = 10.0


class StatsLog:
    """Throughput since the last line, and queues, cache and prefix hits now."""

    def __init__(self, stats: FrontendStats, load: Callable[[], LoadStats | None]) -> None:
        self._stats = stats
        self._load = load
        self._last = self._counts(time.monotonic())

    def _counts(self, now: float) -> tuple[float, int, int]:
        return now, self._stats.prompt_tokens, self._stats.generation_tokens

    def log(self) -> None:
        """Log the line, at level info."""
        (since, prompts, generated), counts = self._last, self._counts(time.monotonic())
        self._last, load = counts, self._load()
        seconds = max(counts[0] - since, 1e-3)
        line = f"{(counts[1] - prompts) / seconds:.1f} prompt tok/s, {(counts[2] - generated) / seconds:.1f} generated tok/s"
        if load is not None:
            line += f", {load.running} running, {load.waiting} waiting, KV cache {load.used_blocks / load.num_blocks:.1%} used"
            if load.prefix_queries:
                line += f", {load.prefix_hits / load.prefix_queries:.1%} of prompt tokens found in it"
        logger.info("%s", line)

    async def run(self) -> None:
        """Log the line at intervals in which something has happened, for ever; returns at once where nobody reads it."""
        while logger.isEnabledFor(logging.INFO):
            await asyncio.sleep(INTERVAL_SECONDS)
            load = self._load()
            if self._counts(0.0)[1:] != self._last[1:] or (load is not None and load.running + load.waiting):
                self.log()
