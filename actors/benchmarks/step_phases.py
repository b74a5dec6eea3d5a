"""Where the time of a step goes: two looks at an engine's clocks, compared."""

from dataclasses import dataclass

import msgspec

from ...ipc.messages.outputs import EngineDescription

CORE, BETWEEN, WORKER, FRONTEND = "core", "between", "worker", "frontend"
_IN_FLIGHT = ("submit", "beside", "wait")  # of the core, from a plan to its result
_AT_WORK = ("receive", "rows", "inputs", "forward", "logits", "choose", "result")  # of the worker, from a plan to its result


@dataclass(frozen=True)
class Look:
    """An engine's clocks at one moment. All numbers only grow."""

    time: float  # seconds of CLOCK_MONOTONIC
    cpu: float  # seconds of CPU of the frontend's process
    output_seconds: float  # see FrontendStats
    tokens: int  # of output, that the frontend has received
    engine: EngineDescription  # with its workers


class Phase(msgspec.Struct, frozen=True):
    """A part of what one process does in a step."""

    process: str  # CORE, WORKER or FRONTEND; BETWEEN is what none of them does
    name: str
    step_us: float  # microseconds, mean of the steps
    share: float  # of the mean step, 0 to 1


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps between two looks were spent on. Processes work at the same time, so each has its own whole step."""

    steps: int
    step_ms: float  # mean, from one to the next
    phases: list[Phase]
    output_token_us: float  # the frontend's outputs, by token
    frontend_cpu_token_us: float  # all CPU of its process, which the benchmark's own streams share, by token


def breakdown(before: Look, after: Look, *, alternating: bool) -> Breakdown:
    """What came between two looks, with one worker's clocks for all of them.

    `alternating`: one step is in flight at most. Only then it is known how long plans and results were under way.
    """
    old, new = before.engine.workers[0], after.engine.workers[0]
    steps, seconds = new.steps - old.steps, after.time - before.time
    core = _grown(before.engine.phases, after.engine.phases)
    worker = _grown(old.phases, new.phases)
    between: dict[str, float] = {}
    if alternating and core and worker:
        away, at_work = (sum(map(one.__getitem__, names)) for one, names in ((core, _IN_FLIGHT), (worker, _AT_WORK)))
        between["mailboxes"] = max(0.0, away - at_work)
    frontend = {"outputs": after.output_seconds - before.output_seconds}
    parts = {CORE: core, BETWEEN: between, WORKER: worker, FRONTEND: frontend}
    tokens = max(1, after.tokens - before.tokens)
    return Breakdown(
        steps=steps,
        step_ms=1e3 * seconds / max(1, steps),
        phases=[
            Phase(process, name, 1e6 * spent / max(1, steps), spent / seconds)
            for process, spent_on in parts.items()
            for name, spent in spent_on.items()
        ],
        output_token_us=1e6 * frontend["outputs"] / tokens,
        frontend_cpu_token_us=1e6 * (after.cpu - before.cpu) / tokens,
    )


def _grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
