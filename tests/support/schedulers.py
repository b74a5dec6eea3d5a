"""Schedulers for tests, and steps of theirs whose tokens a test makes up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ringpost.ipc.messages.config import CacheConfig, SchedulerConfig
from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.requests import AddRequest, CacheKey, Sibling
from ringpost.ipc.messages.results import StepResult
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.sched.integrity import check_integrity
from ringpost.sched.scheduler import Scheduler

EOS = 2
STOP = 7
TOKEN = 60  # sampled where a test does not care


def build_scheduler(
    *,
    seqs: int = 4,
    budget: int = 8,
    blocks: int = 20,
    block_size: int = 4,
    max_model_len: int = 40,
    steps_in_flight: int = 1,
    policy: Literal["fcfs", "priority"] = "fcfs",
    caching: bool = True,
    long_prefill: int = 0,
) -> Scheduler:
    """A scheduler with small limits."""
    return Scheduler(
        SchedulerConfig(
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            scheduling_policy=policy,
            long_prefill_token_threshold=long_prefill,
        ),
        CacheConfig(block_size=block_size, enable_prefix_caching=caching),
        num_blocks=blocks,
        max_model_len=max_model_len,
        steps_in_flight=steps_in_flight,
    )


@dataclass(frozen=True)
class Limits:
    """Of a scheduler whose blocks are about what the longest request needs."""

    max_model_len: int
    block_size: int
    more_blocks: int
    seqs: int
    budget: int
    steps_in_flight: int
    policy: Literal["fcfs", "priority"]
    caching: bool
    long_prefill: int = 0

    @property
    def blocks(self) -> int:
        return -(-self.max_model_len // self.block_size) + self.more_blocks

    def scheduler(self) -> Scheduler:
        return build_scheduler(
            seqs=self.seqs,
            budget=self.budget,
            blocks=self.blocks,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            steps_in_flight=self.steps_in_flight,
            policy=self.policy,
            caching=self.caching,
            long_prefill=self.long_prefill,
        )


def add_request(
    number: int,
    prompt: int | Sequence[int] = 5,
    max_tokens: int | None = 8,
    *,
    priority: int = 0,
    output: Sequence[int] = (),
    salt: str = "",
    keys: Sequence[CacheKey] = (),
    deaths: int = 0,
    siblings: int = 0,
) -> AddRequest:
    """A request with these prompt tokens, or so many that no other request has; siblings have the next numbers."""
    tokens = [1000 * number + index for index in range(prompt)] if isinstance(prompt, int) else list(prompt)
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=(STOP,), seed=number)
    return AddRequest(
        number,
        f"r{number}",
        tokens,
        params,
        0.0,
        (EOS,),
        priority=priority,
        output=list(output),
        cache_salt=salt,
        cache_keys=tuple(keys),
        deaths=deaths,
        siblings=tuple(Sibling(one, one) for one in range(number + 1, number + 1 + siblings)),
    )


def plan_of(scheduler: Scheduler) -> StepPlan:
    """The next step, which there must be."""
    plan = scheduler.schedule()
    check_integrity(scheduler)
    assert plan is not None
    return plan


def complete(scheduler: Scheduler, plan: StepPlan, *tokens: int) -> list[TokenDelta]:
    """Apply a step's result: these tokens, or TOKEN everywhere."""
    update = scheduler.update(StepResult(plan.step, list(tokens) or [TOKEN] * len(plan.sample)))
    check_integrity(scheduler)
    assert update.failures == []
    return update.deltas


def run_step(scheduler: Scheduler) -> StepPlan:
    """Make a step that samples TOKEN everywhere."""
    plan = plan_of(scheduler)
    complete(scheduler, plan)
    return plan


def restart(scheduler: Scheduler, *convicted: int) -> None:
    """The workers die with what is in flight, and these requests end."""
    assert scheduler.restart() == list(convicted)
    check_integrity(scheduler)


def run_to_end(scheduler: Scheduler) -> list[StepPlan]:
    """Make steps until all requests are finished."""
    plans = []
    while scheduler.has_work:
        plans.append(run_step(scheduler))
    return plans


def entered(*plans: StepPlan) -> list[tuple[int, int]]:
    """The requests that enter a row, and where they start."""
    return [(new.request, plan.starts[plan.rows.index(new.row)]) for plan in plans for new in plan.new]
