"""What `ringpost bench sessions` measures and finds: its settings and figures."""

import math
from collections.abc import Sequence

import msgspec

CHUNK_TOKENS = 16  # of a chunk of input
MARK = 4  # tokens of an answer that have come before it is interrupted
ROUND = 10  # turns of one session, after which a new one begins


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    model: str
    streams: int  # other requests that run meanwhile
    turns: int  # that are interrupted
    chunks: int  # of a session that grows
    idle: int  # sessions that have had a turn and wait
    idle_kv: int  # of these, the KV cache has room for so many


class Spread(msgspec.Struct, frozen=True):
    """Seconds: the median, the 99th of a hundred, and the longest."""

    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread":
        """Of one or more, by nearest rank."""
        rising = sorted(seconds)
        return cls(*(rising[math.ceil(share * len(rising)) - 1] for share in (0.5, 0.99, 1)))


class Interruptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user sees who interrupts answers, beside the streams."""

    silence: Spread  # from `interrupt` to the last output of the old answer
    first_token: Spread  # from `append` of the next chunk to the first token of its answer


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds to the first token of each chunk of one session."""

    streams: int  # that ran meanwhile
    first_token: list[float]  # by chunk
    first_median: float  # of the first ten, or half of them if there are less than twenty
    last_median: float  # of as many at the end
    ratio: float  # last / first


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions of which the KV cache holds some, asked again one after the other."""

    answered: int
    longest_first_token: float  # seconds
    num_blocks: int  # of the KV cache
    used_blocks: int  # while all are idle
    evicted: int  # sessions without KV then
    frontend_bytes: float  # of memory, but for shared one, of this process: an idle session
    core_bytes: float  # the same of the core


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run has found."""

    benchmark: str
    machine: dict[str, str | float]
    settings: Settings
    interruptions: Interruptions
    growth: list[Growth]  # alone, then beside the streams
    idle: Idle
