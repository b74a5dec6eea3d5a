"""What the core says of how busy it is: on its status board, and when asked."""

from collections.abc import Mapping

from ...ipc.messages.load import LoadStats
from ...ipc.messages.outputs import EngineDescription
from ...sched.outputs import Stats
from .pausing import Pausing


def load_of(core: int, stats: Stats, pausing: Pausing) -> LoadStats:
    """How busy the core of this number is."""
    return LoadStats(
        core,
        stats.running,
        stats.waiting + pausing.num_held,
        stats.num_blocks - stats.free_blocks,
        stats.num_blocks,
        stats.preemptions,
        stats.prefix_queries,
        stats.prefix_hits,
    )


def description_of(stats: Stats, pausing: Pausing, phases: Mapping[str, float]) -> EngineDescription:
    """All its numbers; `phases` are seconds of its loop."""
    return EngineDescription(
        stats.running,
        stats.waiting + pausing.num_held,
        stats.num_blocks,
        stats.free_blocks,
        stats.steps,
        stats.parked,
        pausing.paused,
        stats.sessions,
        stats.sessions_evicted,
        dict(phases),
    )
