"""`ringpost bench scheduler`: what it costs to plan a step and to apply its result, without a model and without processes."""

import random
from collections import deque
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

import msgspec

from ...ipc.messages.config import CacheConfig, RuntimeConfig, SchedulerConfig
from ...ipc.messages.plans import StepPlan
from ...ipc.messages.requests import AddRequest
from ...ipc.messages.results import StepResult
from ...ipc.messages.sampling import SamplingParams
from ...sched.scheduler import Scheduler
from ..boot import freeze_memory
from .hot_spots import HotSpot, hot_spots
from .mailbox import machine_facts
from .measurements import Figures
from .thaw import thawed_afterwards

ADMITTED = 128  # requests of one measurement of admission
_TOKEN, _VOCABULARY, _END = 100, 50_000, 2  # what the steps sample, what prompts are made of, what would end a request


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and how often."""

    running: list[int]  # requests that get a token each step
    prompt_tokens: list[int]  # of the admitted ones; the first is also that of the running ones, about
    steps: int  # of each repeat, with running requests
    repeat: int
    async_scheduling: bool  # whether a step is planned while the one before runs
    profile: bool  # once more each, under cProfile


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one case, in microseconds. Each is the median of that figure in the repeats."""

    measurement: str  # key of MEASUREMENTS
    size: int  # running requests, or tokens of a prompt
    figures: Figures
    repeats: list[Figures]
    hot_spots: list[HotSpot]  # empty, unless asked for


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run has found."""

    benchmark: str
    machine: dict[str, str | float]
    settings: Settings
    results: list[Result]


Case = Callable[[], Figures]  # takes one repeat


class _Driver:
    """Drives a scheduler as the engine core does, and counts the nanoseconds of each of its methods."""

    def __init__(self, *, rows: int, budget: int, num_blocks: int, max_model_len: int, steps_in_flight: int) -> None:
        self.scheduler = Scheduler(
            SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=budget),
            CacheConfig(),
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            steps_in_flight=steps_in_flight,
        )
        self._steps_in_flight = steps_in_flight
        self._in_flight: deque[StepPlan] = deque()
        self.restart()

    def restart(self) -> None:
        """Count from zero."""
        self.added = self.planned = self.updated = 0

    def add(self, request: AddRequest) -> None:
        """Add a request."""
        start = perf_counter_ns()
        self.scheduler.add(request)
        self.added += perf_counter_ns() - start

    def step(self) -> None:
        """Plan as many steps as may be in flight, and apply the result of the oldest. Making the result is not counted."""
        while len(self._in_flight) < self._steps_in_flight:
            start = perf_counter_ns()
            plan = self.scheduler.schedule()
            self.planned += perf_counter_ns() - start
            if plan is None:
                break
            self._in_flight.append(plan)
        plan = self._in_flight.popleft()
        result = StepResult(plan.step, [_TOKEN] * len(plan.sample))
        start = perf_counter_ns()
        update = self.scheduler.update(result)
        self.updated += perf_counter_ns() - start
        assert not update.failures


def _decode(settings: Settings, running: int) -> Case:
    """Requests that run, none of which ends. Their prompts differ in length, so that they need blocks in different steps."""
    size = CacheConfig().block_size
    output = settings.steps * (settings.repeat + 1) + 2 * size
    lengths = [settings.prompt_tokens[0] + number % size for number in range(running)]
    driver = _Driver(
        rows=running,
        budget=sum(lengths),
        num_blocks=sum((length + output) // size + 1 for length in lengths),
        max_model_len=max(lengths) + output,
        steps_in_flight=2 if settings.async_scheduling else 1,
    )
    _freeze()
    for number, length in enumerate(lengths):
        driver.add(_request(number, _prompt(number, length), max_tokens=output))
    driver.step()
    assert driver.scheduler.stats().running == running

    def measure() -> Figures:
        driver.restart()
        for _ in range(settings.steps):
            driver.step()
        plan, update = driver.planned / settings.steps / 1e3, driver.updated / settings.steps / 1e3
        return {"plan_us": plan, "update_us": update, "step_us": plan + update, "request_us": (plan + update) / running}

    return measure


def _admission(settings: Settings, length: int, *, warm: bool) -> Case:
    """Requests that arrive at once and end with their first token; where warm, those before them had the same prompts."""
    size = CacheConfig().block_size
    driver = _Driver(
        rows=SchedulerConfig().max_num_seqs,
        budget=SchedulerConfig().max_num_batched_tokens,
        num_blocks=ADMITTED * (length // size + 2),
        max_model_len=length + 1,
        steps_in_flight=2 if settings.async_scheduling else 1,
    )
    _freeze()
    requests = [_request(number, _prompt(number, length), max_tokens=1) for number in range(ADMITTED)]

    def measure() -> Figures:
        if not warm:
            driver.scheduler.reset_prefix_cache()
        driver.restart()
        for request in requests:
            driver.add(request)
        while driver.scheduler.has_work:
            driver.step()
        add, plan, update = (time / ADMITTED / 1e3 for time in (driver.added, driver.planned, driver.updated))
        return {"add_us": add, "plan_us": plan, "update_us": update, "request_us": add + plan + update}

    measure()
    return measure


def _prompt(number: int, length: int) -> list[int]:
    """Tokens that begin like those of no other number."""
    return [number, *random.Random(number).choices(range(_VOCABULARY), k=length - 1)]


def _request(number: int, prompt: list[int], *, max_tokens: int) -> AddRequest:
    params = SamplingParams(max_tokens=max_tokens, seed=number)
    return AddRequest(number, f"request-{number}", prompt, params, 0.0, eos_token_ids=(_END,))


def _freeze() -> None:
    """What is there before the first request lives for good, as in the core's process."""
    freeze_memory(RuntimeConfig())


MEASUREMENTS: dict[str, Callable[[Settings, int], Case]] = {
    "decode": _decode,
    "cold admission": lambda settings, size: _admission(settings, size, warm=False),
    "warm admission": lambda settings, size: _admission(settings, size, warm=True),
}


def cases(settings: Settings) -> list[tuple[str, int]]:
    """What is measured: a key of MEASUREMENTS, and a size."""
    return [
        *(("decode", running) for running in settings.running),
        *((name, length) for length in settings.prompt_tokens for name in ("cold admission", "warm admission")),
    ]


def run_scheduler_benchmark(settings: Settings, done: Callable[[], None]) -> Report:
    """Measure. Calls `done` after each of the `cases(settings)`."""
    machine = machine_facts()
    results = []
    for name, size in cases(settings):
        with thawed_afterwards():
            measure = MEASUREMENTS[name](settings, size)
            repeats = [measure() for _ in range(settings.repeat)]
            spots = hot_spots(measure, leave_out=__file__) if settings.profile else []
        figures = {figure: median(repeat[figure] for repeat in repeats) for figure in repeats[0]}
        results.append(Result(measurement=name, size=size, figures=figures, repeats=repeats, hot_spots=spots))
        done()
    return Report(benchmark="scheduler", machine=machine, settings=settings, results=results)
