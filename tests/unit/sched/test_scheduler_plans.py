"""What a step holds: chunks, budget, rows, blocks and admission."""

import pytest
from schedulers import add_request, build_scheduler, complete, entered, plan_of, run_step, run_to_end

from ringpost.ipc.messages.config import CacheConfig, SchedulerConfig
from ringpost.ipc.messages.plans import NewRow, StepPlan
from ringpost.sched.scheduler import Scheduler


def test_nothing_to_do_makes_no_plan() -> None:
    scheduler = build_scheduler()
    assert scheduler.schedule() is None
    assert not scheduler.has_work


def test_a_request_crosses_once_and_then_by_its_changes() -> None:
    scheduler = build_scheduler()
    one = add_request(1, prompt=3)
    scheduler.add(one)
    first, second, third = (run_step(scheduler) for _ in range(3))
    new = NewRow(row=0, request=1, tokens=one.prompt, prompt_length=3, blocks=[0], params=one.params)
    assert first == StepPlan(0, [new], rows=[0], starts=[0], counts=[3], blocks=[[]], sample=[0])
    assert second == StepPlan(1, [], rows=[0], starts=[3], counts=[1], blocks=[[]], sample=[0])
    assert third == StepPlan(2, [], rows=[0], starts=[4], counts=[1], blocks=[[1]], sample=[0])


def test_a_long_prompt_is_chunked_and_samples_at_its_end_only() -> None:
    scheduler = build_scheduler(budget=8)
    scheduler.add(add_request(1, prompt=18))
    plans = [run_step(scheduler) for _ in range(4)]
    assert [plan.counts for plan in plans] == [[8], [8], [2], [1]]
    assert [plan.sample for plan in plans] == [[], [], [0], [0]]
    assert plans[0].new[0].blocks == [0, 1, 2, 3, 4], "all blocks of its prompt"
    assert [plan.blocks for plan in plans] == [[[]]] * 4


def test_running_requests_come_before_a_new_prompt_in_the_same_step() -> None:
    scheduler = build_scheduler(budget=8)
    scheduler.add(add_request(1, prompt=3))
    scheduler.add(add_request(2, prompt=2))
    run_step(scheduler)
    scheduler.add(add_request(3, prompt=10))
    plan = run_step(scheduler)
    assert (plan.rows, plan.counts, plan.sample) == ([0, 1, 2], [1, 1, 6], [0, 1])
    plan = run_step(scheduler)
    assert (plan.rows, plan.counts, plan.sample) == ([0, 1, 2], [1, 1, 4], [0, 1, 2])


def test_running_requests_never_outnumber_the_budget() -> None:
    scheduler = build_scheduler(seqs=4, budget=2)
    for number in range(3):
        scheduler.add(add_request(number, prompt=1, max_tokens=3))
    plans = [run_step(scheduler) for _ in range(4)]
    assert [plan.rows for plan in plans] == [[0, 1], [0, 1], [0, 1], [0]]
    assert [new.request for plan in plans for new in plan.new] == [0, 1, 2]


def test_at_most_max_num_seqs_run_and_the_lowest_row_is_reused() -> None:
    scheduler = build_scheduler(seqs=2)
    for number, max_tokens in ((1, 1), (2, 3), (3, 1)):
        scheduler.add(add_request(number, prompt=1, max_tokens=max_tokens))
    first = run_step(scheduler)
    assert ([new.row for new in first.new], scheduler.stats().running, scheduler.stats().waiting) == ([0, 1], 1, 1)
    second = run_step(scheduler)
    assert [(new.row, new.request) for new in second.new] == [(0, 3)]
    assert second.rows == [1, 0]


def test_a_request_waits_until_there_are_blocks_for_its_prompt_and_those_behind_it_wait_too() -> None:
    scheduler = build_scheduler(blocks=4)
    scheduler.add(add_request(1, prompt=8, max_tokens=3))  # two blocks, and a third one for its answer
    scheduler.add(add_request(2, prompt=5, max_tokens=2))  # two, and one is kept free for whoever runs
    scheduler.add(add_request(3, prompt=1, max_tokens=1))  # one, which is there, but its turn comes later
    assert [entered(run_step(scheduler)) for _ in range(4)] == [[(1, 0)], [], [], [(2, 0), (3, 0)]]


def test_the_answer_is_not_reserved() -> None:
    scheduler = build_scheduler(blocks=5)
    for number in (1, 2):
        scheduler.add(add_request(number, prompt=4, max_tokens=13))  # four blocks each at worst
    assert entered(run_step(scheduler)) == [(1, 0), (2, 0)]


def test_long_prompts_share_a_step_by_their_threshold() -> None:
    scheduler = build_scheduler(budget=8, long_prefill=3)
    scheduler.add(add_request(1, prompt=20))
    assert run_step(scheduler).counts == [8], "alone it may have all"
    for number in (2, 3):
        scheduler.add(add_request(number, prompt=7))
    assert [run_step(scheduler).counts for _ in range(2)] == [[3, 3, 2], [3, 3, 2]]


def test_what_ranks_first_has_the_budget_first() -> None:
    scheduler = build_scheduler(budget=6, policy="priority")
    scheduler.add(add_request(1, prompt=20, priority=1))
    run_step(scheduler)
    scheduler.add(add_request(2, prompt=8, priority=0))
    scheduler.add(add_request(3, prompt=4, priority=2))
    plans = [run_step(scheduler) for _ in range(5)]
    assert [dict(zip(plan.rows, plan.counts, strict=True)) for plan in plans] == [
        {1: 6},
        {1: 2, 0: 4},
        {1: 1, 0: 5},
        {1: 1, 0: 5},
        {1: 1, 2: 4, 0: 1},
    ]


def test_a_request_may_use_the_whole_pool() -> None:
    scheduler = build_scheduler(blocks=4)
    scheduler.add(add_request(1, prompt=10, max_tokens=7))  # 17 tokens, of which 16 are computed
    run_to_end(scheduler)
    assert scheduler.stats().free_blocks == 4
    assert scheduler.stats().preemptions == 0


def test_the_steps_in_flight_are_bounded() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, prompt=3))
    plan = plan_of(scheduler)
    scheduler.add(add_request(2, prompt=3))
    assert scheduler.schedule() is None
    complete(scheduler, plan)
    assert plan_of(scheduler).rows == [0, 1]


def test_a_step_can_be_planned_before_the_result_of_the_one_before() -> None:
    scheduler = build_scheduler(steps_in_flight=2)
    scheduler.add(add_request(1, prompt=3, max_tokens=3))
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
    scheduler = build_scheduler()
    scheduler.add(add_request(1, prompt=3, output=(21, 22)))
    plan = run_step(scheduler)
    assert (plan.new[0].tokens, plan.new[0].prompt_length) == ([1000, 1001, 1002, 21, 22], 3)
    assert (plan.starts, plan.counts, plan.sample) == ([0], [5], [0])


def test_a_resumed_output_in_chunks_samples_at_its_end_only() -> None:
    scheduler = build_scheduler(budget=4)
    scheduler.add(add_request(1, prompt=3, max_tokens=9, output=(21, 22, 23, 24, 25, 26)))
    assert [run_step(scheduler).sample for _ in range(3)] == [[], [], [0]]


def test_stats_count_what_is_held() -> None:
    scheduler = build_scheduler(seqs=1, blocks=20)
    scheduler.add(add_request(1, prompt=5))
    scheduler.add(add_request(2, prompt=5))
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
        scheduler = build_scheduler(seqs=3, budget=5, blocks=8)
        for number in range(6):
            scheduler.add(add_request(number, prompt=3 + number, max_tokens=2 + number % 3))
        return run_to_end(scheduler)

    assert history() == history()
