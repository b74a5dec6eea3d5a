"""Parked requests: what they give up and when, who profits, and how they go on."""

import pytest

from ringpost.ipc.messages.config import CacheConfig, SchedulerConfig
from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.plans import NewRow, StepPlan
from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.results import RowFailure, StepResult
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.sched.integrity import check_integrity
from ringpost.sched.scheduler import Scheduler


def build(*, seqs: int = 4, blocks: int = 20, steps_in_flight: int = 1) -> Scheduler:
    return Scheduler(
        SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=8),
        CacheConfig(block_size=4),
        num_blocks=blocks,
        max_model_len=40,
        steps_in_flight=steps_in_flight,
    )


def request(number: int, prompt: int = 5, max_tokens: int = 8) -> AddRequest:
    """By default one of three blocks at worst, two of them for its prompt."""
    return AddRequest(number, f"r{number}", list(range(prompt)), SamplingParams(max_tokens=max_tokens), 0.0)


def plan_of(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    check_integrity(scheduler)
    assert plan is not None
    return plan


def complete(scheduler: Scheduler, plan: StepPlan, *tokens: int) -> list[TokenDelta]:
    update = scheduler.update(StepResult(plan.step, list(tokens)))
    check_integrity(scheduler)
    return update.deltas


def run_step(scheduler: Scheduler) -> StepPlan:
    """Make a step that samples the token 60 everywhere."""
    plan = plan_of(scheduler)
    complete(scheduler, plan, *[60] * len(plan.sample))
    return plan


def entered(plan: StepPlan) -> list[tuple[int, int]]:
    """The requests that enter a row, and where they start."""
    return [(new.request, plan.starts[plan.rows.index(new.row)]) for new in plan.new]


def park(scheduler: Scheduler, *numbers: int) -> None:
    for number in numbers:
        assert scheduler.park(number)
        check_integrity(scheduler)


def unpark(scheduler: Scheduler, *numbers: int) -> None:
    for number in numbers:
        assert scheduler.unpark(number)
        check_integrity(scheduler)


def test_a_parked_request_gives_up_its_row_at_once_and_keeps_its_blocks() -> None:
    scheduler = build(seqs=1)
    scheduler.add(request(1))
    scheduler.add(request(2))
    run_step(scheduler)
    park(scheduler, 1)
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.parked, stats.free_blocks) == (0, 2, 1, 18)
    assert entered(run_step(scheduler)) == [(2, 0)]


def test_it_goes_on_where_it_left_off() -> None:
    scheduler = build()
    one = request(1)
    scheduler.add(one)
    run_step(scheduler)
    run_step(scheduler)
    park(scheduler, 1)
    assert scheduler.schedule() is None
    unpark(scheduler, 1)
    again = NewRow(row=0, request=1, tokens=[0, 1, 2, 3, 4, 60, 60], prompt_length=5, blocks=[0, 1], params=one.params)
    assert plan_of(scheduler) == StepPlan(2, [again], rows=[0], starts=[6], counts=[1], blocks=[[]], sample=[0])


def test_it_gets_the_block_of_its_next_token_with_its_table() -> None:
    scheduler = build()
    scheduler.add(request(1, prompt=4))
    run_step(scheduler)
    park(scheduler, 1)
    scheduler.add(request(2))
    run_step(scheduler)
    unpark(scheduler, 1)
    plan = plan_of(scheduler)
    assert (plan.new[0].blocks, plan.starts, plan.counts) == ([0, 3], [5, 4], [1, 1])


def test_a_prompt_can_be_parked_between_its_chunks() -> None:
    scheduler = build()
    scheduler.add(request(1, prompt=18))
    run_step(scheduler)
    park(scheduler, 1)
    unpark(scheduler, 1)
    plans = [run_step(scheduler) for _ in range(2)]
    assert [(plan.starts, plan.counts, plan.sample) for plan in plans] == [([8], [8], []), ([16], [2], [0])]


def test_its_late_token_is_delivered_and_it_waits_for_it() -> None:
    scheduler = build(steps_in_flight=2)
    scheduler.add(request(1))
    first = plan_of(scheduler)
    park(scheduler, 1)
    unpark(scheduler, 1)
    assert scheduler.schedule() is None, "the token that it needs is not known"
    assert complete(scheduler, first, 61) == [TokenDelta(1, 0, [61])]
    plan = plan_of(scheduler)
    assert (plan.new[0].tokens, plan.starts) == ([0, 1, 2, 3, 4, 61], [5])


def test_its_late_token_can_be_its_last() -> None:
    scheduler = build()
    scheduler.add(request(1, max_tokens=1))
    plan = plan_of(scheduler)
    park(scheduler, 1)
    assert complete(scheduler, plan, 61) == [TokenDelta(1, 0, [61], "length")]
    assert not scheduler.has_work
    assert scheduler.stats().free_blocks == 20
    assert not scheduler.unpark(1)


def test_it_can_fail_in_the_step_that_was_in_flight() -> None:
    scheduler = build()
    scheduler.add(request(1))
    plan = plan_of(scheduler)
    park(scheduler, 1)
    update = scheduler.update(StepResult(plan.step, [-1], [RowFailure(0, "ValueError", "bad")]))
    assert [failed.request for failed in update.failures] == [1]
    assert not scheduler.has_work


def test_it_returns_before_those_that_had_no_turn_yet() -> None:
    scheduler = build(seqs=1)
    for number in (1, 2, 3):
        scheduler.add(request(number))
    run_step(scheduler)
    park(scheduler, 1)
    assert entered(run_step(scheduler)) == [(2, 0)]
    park(scheduler, 2)
    unpark(scheduler, 2, 1)
    orders = []
    while scheduler.has_work:
        orders += entered(run_step(scheduler))
    assert orders == [(2, 5), (1, 5), (3, 0)]


def test_its_blocks_go_to_whoever_needs_them_and_it_computes_them_anew() -> None:
    scheduler = build(blocks=4)
    scheduler.add(request(1))
    run_step(scheduler)
    run_step(scheduler)
    park(scheduler, 1)
    scheduler.add(request(2))
    assert entered(run_step(scheduler)) == [(2, 0)]
    unpark(scheduler, 1)
    assert run_step(scheduler).new == [], "there is not room for both"
    assert scheduler.abort(2)
    plan = plan_of(scheduler)
    assert (plan.new[0].tokens, plan.new[0].prompt_length) == ([0, 1, 2, 3, 4, 60, 60], 5)
    assert (plan.starts, plan.counts, plan.sample) == ([0], [7], [0])


def test_blocks_that_a_step_in_flight_still_writes_can_go_to_others() -> None:
    scheduler = build(blocks=4, steps_in_flight=2)
    scheduler.add(request(1))
    first = plan_of(scheduler)
    park(scheduler, 1)
    scheduler.add(request(2))
    second = plan_of(scheduler)
    assert second.new[0].blocks == first.new[0].blocks
    assert complete(scheduler, first, 61) == [TokenDelta(1, 0, [61])]
    assert complete(scheduler, second, 71) == [TokenDelta(2, 0, [71])]


def test_the_one_parked_longest_loses_its_blocks_first_and_only_as_many_as_need_be() -> None:
    scheduler = build(blocks=9)
    for number in (1, 2, 3):
        scheduler.add(request(number))
    for _ in range(3):
        run_step(scheduler)
    park(scheduler, 2, 1, 3)
    scheduler.add(request(4))
    assert entered(run_step(scheduler)) == [(4, 0)]
    assert scheduler.abort(4)
    unpark(scheduler, 1, 3, 2)
    assert entered(run_step(scheduler)) == [(1, 7), (3, 6), (2, 0)]


def test_nothing_is_taken_in_vain() -> None:
    scheduler = build(blocks=9)
    for number in (1, 2):
        scheduler.add(request(number))
    run_step(scheduler)
    run_step(scheduler)
    park(scheduler, 1)
    scheduler.add(request(3, prompt=20, max_tokens=13))  # eight blocks, of which the running one needs three
    assert entered(run_step(scheduler)) == []
    unpark(scheduler, 1)
    assert entered(run_step(scheduler)) == [(1, 6)]


def test_one_that_waits_again_gives_its_blocks_to_one_before_it() -> None:
    """Else both would wait for ever: one for blocks, the other for its turn."""
    scheduler = build(blocks=6)
    for number in (1, 2):
        scheduler.add(request(number))
    run_step(scheduler)
    run_step(scheduler)
    park(scheduler, 1)
    scheduler.add(request(3))
    assert entered(run_step(scheduler)) == [(3, 0)]
    park(scheduler, 2, 3)
    unpark(scheduler, 1, 3, 2)
    orders = []
    while scheduler.has_work:
        orders += entered(run_step(scheduler))
    assert orders == [(1, 0), (3, 5), (2, 0)]


@pytest.mark.parametrize("again", [False, True], ids=["parked", "waiting again"])
def test_an_abort_frees_what_it_kept(again: bool) -> None:
    scheduler = build()
    scheduler.add(request(1))
    run_step(scheduler)
    park(scheduler, 1)
    if again:
        unpark(scheduler, 1)
    assert scheduler.abort(1)
    check_integrity(scheduler)
    assert not scheduler.has_work
    assert scheduler.stats().free_blocks == 20


def test_a_request_can_be_parked_before_its_first_turn() -> None:
    scheduler = build()
    scheduler.add(request(1))
    park(scheduler, 1)
    assert scheduler.schedule() is None
    unpark(scheduler, 1)
    assert entered(run_step(scheduler)) == [(1, 0)]


def test_what_cannot_be_parked_or_is_not_parked_says_so() -> None:
    scheduler = build()
    assert not scheduler.park(1)
    assert not scheduler.unpark(1)
    scheduler.add(request(1))
    assert not scheduler.unpark(1)
    park(scheduler, 1, 1)
    unpark(scheduler, 1)
    assert not scheduler.unpark(1)
