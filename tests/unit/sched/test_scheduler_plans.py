"""What a step holds: chunks, budget, rows, blocks and admission."""

import pytest

from ringpost.ipc.messages.config import CacheConfig, SchedulerConfig
from ringpost.ipc.messages.plans import NewRow, StepPlan
from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.results import StepResult
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.sched.integrity import check_integrity
from ringpost.sched.scheduler import Scheduler

TOKEN = 9


def build(*, seqs: int = 4, budget: int = 8, blocks: int = 20, steps_in_flight: int = 1) -> Scheduler:
    return Scheduler(
        SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=budget),
        CacheConfig(block_size=4),
        num_blocks=blocks,
        max_model_len=40,
        steps_in_flight=steps_in_flight,
    )


def request(number: int, prompt: int, max_tokens: int | None = 5, output: tuple[int, ...] = ()) -> AddRequest:
    params = SamplingParams(max_tokens=max_tokens, seed=number)
    return AddRequest(number, f"r{number}", list(range(prompt)), params, 0.0, (2,), output=list(output))


def plan_of(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    check_integrity(scheduler)
    assert plan is not None
    return plan


def complete(scheduler: Scheduler, plan: StepPlan) -> None:
    scheduler.update(StepResult(plan.step, [TOKEN] * len(plan.sample)))
    check_integrity(scheduler)


def run_step(scheduler: Scheduler) -> StepPlan:
    plan = plan_of(scheduler)
    complete(scheduler, plan)
    return plan


def test_nothing_to_do_makes_no_plan() -> None:
    scheduler = build()
    assert scheduler.schedule() is None
    assert not scheduler.has_work


def test_a_request_crosses_once_and_then_by_its_changes() -> None:
    scheduler = build()
    one = request(1, prompt=3)
    scheduler.add(one)
    first, second, third = (run_step(scheduler) for _ in range(3))
    new = NewRow(row=0, request=1, tokens=[0, 1, 2], prompt_length=3, blocks=[0], params=one.params)
    assert first == StepPlan(0, [new], rows=[0], starts=[0], counts=[3], blocks=[[]], sample=[0])
    assert second == StepPlan(1, [], rows=[0], starts=[3], counts=[1], blocks=[[]], sample=[0])
    assert third == StepPlan(2, [], rows=[0], starts=[4], counts=[1], blocks=[[1]], sample=[0])


def test_a_long_prompt_is_chunked_and_samples_at_its_end_only() -> None:
    scheduler = build(budget=8)
    scheduler.add(request(1, prompt=18))
    plans = [run_step(scheduler) for _ in range(4)]
    assert [plan.counts for plan in plans] == [[8], [8], [2], [1]]
    assert [plan.sample for plan in plans] == [[], [], [0], [0]]
    assert [plan.new[0].blocks if plan.new else plan.blocks[0] for plan in plans] == [[0, 1], [2, 3], [4], []]


def test_running_requests_come_before_a_new_prompt_in_the_same_step() -> None:
    scheduler = build(budget=8)
    scheduler.add(request(1, prompt=3))
    scheduler.add(request(2, prompt=2))
    run_step(scheduler)
    scheduler.add(request(3, prompt=10))
    plan = run_step(scheduler)
    assert (plan.rows, plan.counts, plan.sample) == ([0, 1, 2], [1, 1, 6], [0, 1])
    plan = run_step(scheduler)
    assert (plan.rows, plan.counts, plan.sample) == ([0, 1, 2], [1, 1, 4], [0, 1, 2])


def test_running_requests_never_outnumber_the_budget() -> None:
    scheduler = build(seqs=4, budget=2)
    for number in range(3):
        scheduler.add(request(number, prompt=1, max_tokens=3))
    plans = [run_step(scheduler) for _ in range(4)]
    assert [plan.rows for plan in plans] == [[0, 1], [0, 1], [0, 1], [0]]
    assert [new.request for plan in plans for new in plan.new] == [0, 1, 2]


def test_at_most_max_num_seqs_run_and_the_lowest_row_is_reused() -> None:
    scheduler = build(seqs=2)
    for number, max_tokens in ((1, 1), (2, 3), (3, 1)):
        scheduler.add(request(number, prompt=1, max_tokens=max_tokens))
    first = run_step(scheduler)
    assert ([new.row for new in first.new], scheduler.stats().running, scheduler.stats().waiting) == ([0, 1], 1, 1)
    second = run_step(scheduler)
    assert [(new.row, new.request) for new in second.new] == [(0, 3)]
    assert second.rows == [1, 0]


def test_a_request_waits_until_its_worst_case_fits() -> None:
    scheduler = build(blocks=4)
    scheduler.add(request(1, prompt=4, max_tokens=9))  # at worst 12 positions: three blocks
    scheduler.add(request(2, prompt=4, max_tokens=2))  # two blocks
    scheduler.add(request(3, prompt=1, max_tokens=1))  # one block, which is there, but its turn comes later
    for _ in range(9):
        assert [new.request for new in run_step(scheduler).new] in ([1], [])
    assert scheduler.stats().waiting == 2
    assert [new.request for new in run_step(scheduler).new] == [2, 3]


def test_a_request_may_use_the_whole_pool() -> None:
    scheduler = build(blocks=4)
    scheduler.add(request(1, prompt=10, max_tokens=7))  # 17 tokens, of which 16 are computed
    while scheduler.has_work:
        run_step(scheduler)
    assert scheduler.stats().free_blocks == 4


def test_the_steps_in_flight_are_bounded() -> None:
    scheduler = build()
    scheduler.add(request(1, prompt=3))
    plan = plan_of(scheduler)
    scheduler.add(request(2, prompt=3))
    assert scheduler.schedule() is None
    complete(scheduler, plan)
    assert plan_of(scheduler).rows == [0, 1]


def test_a_step_can_be_planned_before_the_result_of_the_one_before() -> None:
    scheduler = build(steps_in_flight=2)
    scheduler.add(request(1, prompt=3, max_tokens=3))
    first, second = plan_of(scheduler), plan_of(scheduler)
    assert scheduler.schedule() is None
    assert (second.starts, second.counts, second.sample) == ([3], [1], [0])
    complete(scheduler, first)
    third = plan_of(scheduler)
    assert (third.starts, third.sample) == ([4], [0])
    complete(scheduler, second)
    assert scheduler.schedule() is None, "the last of three tokens is in flight"
    complete(scheduler, third)
    assert not scheduler.has_work


def test_a_resumed_request_recomputes_its_output_after_the_prompt() -> None:
    scheduler = build()
    scheduler.add(request(1, prompt=3, output=(21, 22)))
    plan = run_step(scheduler)
    assert (plan.new[0].tokens, plan.new[0].prompt_length) == ([0, 1, 2, 21, 22], 3)
    assert (plan.starts, plan.counts, plan.sample) == ([0], [5], [0])


def test_a_resumed_output_in_chunks_samples_at_its_end_only() -> None:
    scheduler = build(budget=4)
    scheduler.add(request(1, prompt=3, max_tokens=9, output=(21, 22, 23, 24, 25, 26)))
    assert [run_step(scheduler).sample for _ in range(3)] == [[], [], [0]]


def test_stats_count_what_is_held() -> None:
    scheduler = build(seqs=1, blocks=20)
    scheduler.add(request(1, prompt=5))
    scheduler.add(request(2, prompt=5))
    plan = plan_of(scheduler)
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.num_blocks, stats.free_blocks, stats.steps) == (1, 1, 20, 18, 0)
    complete(scheduler, plan)
    assert scheduler.stats().steps == 1


@pytest.mark.parametrize(
    ("field", "value", "least"), [("num_blocks", 0, 1), ("max_model_len", 1, 2), ("steps_in_flight", 0, 1)]
)
def test_a_wrong_constructor_value_is_named(field: str, value: int, least: int) -> None:
    values = {"num_blocks": 4, "max_model_len": 40, "steps_in_flight": 1} | {field: value}
    with pytest.raises(ValueError, match=f"{field} must be at least {least}, got {value}"):
        Scheduler(SchedulerConfig(), CacheConfig(), **values)


def test_the_same_history_makes_the_same_plans() -> None:
    def history() -> list[StepPlan]:
        scheduler = build(seqs=3, budget=5, blocks=8)
        for number in range(6):
            scheduler.add(request(number, prompt=3 + number, max_tokens=2 + number % 3))
        plans = []
        while scheduler.has_work:
            plans.append(run_step(scheduler))
        return plans

    assert history() == history()
