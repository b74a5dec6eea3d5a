"""What a worker says of itself, which crosses to the core and on to the frontend."""

from .base import Record


class WorkerDescription(Record, frozen=True):
    """Numbers of a worker at one moment."""

    rank: int
    pid: int
    device: str
    dtype: str
    num_threads: int
    weight_bytes: int
    cache_bytes: int
    steps: int
    phases: dict[str, float] = {}  # seconds spent in each phase of a step, since it was started
