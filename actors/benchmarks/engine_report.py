"""What `ringpost bench throughput`, `latency` and `growth` measure and find: their settings and figures."""

from typing import Any

import msgspec

from .sessions_report import Spread
from .step_phases import Breakdown


class Point(msgspec.Struct, frozen=True):
    """A load: so many streams at once, each of which asks one request after the other."""

    concurrency: int
    input_len: int  # tokens
    output_len: int  # tokens
    num_prompts: int  # requests of all streams together


class ThroughputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    model: str
    options: dict[str, Any]  # of the engine, that were given
    points: list[Point]


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """What one load came to."""

    point: Point
    seconds: float  # from the first request to the last token
    tokens_per_second: float  # of output; the time of the prompts counts
    first_token: Spread  # seconds from a request to its first token
    inter_token: Spread  # seconds between two outputs of a request
    breakdown: Breakdown


class ThroughputReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run has found."""

    benchmark: str
    machine: dict[str, str | float]
    settings: ThroughputSettings
    results: list[Throughput]


class LatencySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    model: str
    options: dict[str, Any]  # of the engine, that were given
    batch_size: int
    input_len: int  # tokens
    output_len: int  # tokens
    repeat: int  # batches, one after the other


class LatencyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run has found; times in seconds."""

    benchmark: str
    machine: dict[str, str | float]
    settings: LatencySettings
    batches: list[float]  # of each from its requests to its last token
    mean: float
    batch: Spread  # of these
    first_token: Spread
    step: Spread  # between two outputs of a request
    tokens_per_second: float  # of output, in all batches
    breakdown: Breakdown


class GrowthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    model: str
    options: dict[str, Any]  # of the engine, that were given
    batch_sizes: list[int]  # requests at once, at the same context
    contexts: list[int]  # tokens of the prompt of one request
    output_len: int  # steps of each request that are measured
    repeat: int  # of each batch


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """The decode step of one batch."""

    batch_size: int
    context: int  # tokens of each prompt
    step: Spread  # seconds, of all steps that each request saw
    tokens_per_second: float  # of the batch, at the median
    ratio: float  # of the median to that of the first of its series


class GrowthReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run has found: a series each, in the order of the settings."""

    benchmark: str
    machine: dict[str, str | float]
    settings: GrowthSettings
    batch_sizes: list[StepTime]
    contexts: list[StepTime]
