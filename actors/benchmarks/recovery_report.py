"""What `ringpost bench recovery` measures and finds: its faults, settings and figures."""

from signal import SIGKILL, SIGSTOP, Signals

import msgspec

UNDISTURBED = "none"  # in place of a fault
MARK = 4  # tokens that each stream has got when the fault strikes


class Fault(msgspec.Struct, frozen=True):
    """A signal to processes of these kinds, at once."""

    victims: tuple[str, ...]
    signal: Signals
    about: str


FAULTS = {
    "worker": Fault(("worker",), SIGKILL, "the worker is killed"),
    "core": Fault(("engine_core",), SIGKILL, "the core is killed"),
    "hang": Fault(("worker",), SIGSTOP, "the worker is stopped, and replaced after hang_timeout"),
    "both": Fault(("engine_core", "worker"), SIGKILL, "core and worker are killed at once"),
}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    model: str
    streams: int  # greedy and seeded by turns
    tokens: int  # of each stream
    faults: list[str]  # keys of FAULTS, in their order
    hang_timeout: float  # seconds
    overhead: int  # pairs of runs without a fault, with max_restarts=0 and with its default; 0: none


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one fault came to. What is lost or changed is so against the undisturbed streams."""

    fault: str  # key of FAULTS, or UNDISTURBED
    longest_pause_s: float  # between two outputs of one stream
    new_request_s: float | None  # until the first token of a request sent as the fault struck; None: it failed
    tokens_lost: int
    tokens_changed: int
    streams_failed: int
    streams_struck: int  # unfinished as the fault struck
    replaced: list[str]  # processes, and why
    errors: list[str]  # of the streams that failed, and of the new request


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens a second of all streams together, by run, and the ratio of the medians."""

    without_restarts: list[float]  # max_restarts=0
    with_restarts: list[float]
    ratio: float  # with / without


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run has found."""

    benchmark: str
    machine: dict[str, str | float]
    settings: Settings
    results: list[Result]  # the undisturbed run first
    processes_seen: int  # of the engine, successors included
    processes_left: int  # of these, after the engine's end
    overhead: Overhead | None
