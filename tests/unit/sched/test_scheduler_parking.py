"""Parked requests: what they give up and when, who profits, and how they go on."""

import pytest
from schedulers import TOKEN, add_request, build_scheduler, complete, entered, plan_of, run_step, run_to_end

from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.plans import NewRow, StepPlan
from ringpost.ipc.messages.results import RowFailure, StepResult
from ringpost.sched.integrity import check_integrity
from ringpost.sched.scheduler import Scheduler


def park(scheduler: Scheduler, *numbers: int) -> None:
    for number in numbers:
        assert scheduler.park(number)
        check_integrity(scheduler)


def unpark(scheduler: Scheduler, *numbers: int) -> None:
    for number in numbers:
        assert scheduler.unpark(number)
        check_integrity(scheduler)


def test_a_parked_request_gives_up_its_row_at_once_and_keeps_its_blocks() -> None:
    scheduler = build_scheduler(seqs=1)
    scheduler.add(add_request(1))
    scheduler.add(add_request(2))
    run_step(scheduler)
    park(scheduler, 1)
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.parked, stats.free_blocks) == (0, 2, 1, 18)
    assert entered(run_step(scheduler)) == [(2, 0)]


def test_it_goes_on_where_it_left_off() -> None:
    scheduler = build_scheduler()
    one = add_request(1)
    scheduler.add(one)
    run_step(scheduler)
    run_step(scheduler)
    park(scheduler, 1)
    assert scheduler.schedule() is None
    unpark(scheduler, 1)
    again = NewRow(0, 1, tokens=[*one.prompt, TOKEN, TOKEN], prompt_length=5, blocks=[0, 1], params=one.params)
    assert plan_of(scheduler) == StepPlan(2, [again], rows=[0], starts=[6], counts=[1], blocks=[[]], sample=[0])


def test_it_gets_the_block_of_its_next_token_with_its_table() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, prompt=4))
    run_step(scheduler)
    park(scheduler, 1)
    scheduler.add(add_request(2))
    run_step(scheduler)
    unpark(scheduler, 1)
    plan = plan_of(scheduler)
    assert (plan.new[0].blocks, plan.starts, plan.counts) == ([0, 3], [5, 4], [1, 1])


def test_a_prompt_can_be_parked_between_its_chunks() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, prompt=18))
    run_step(scheduler)
    park(scheduler, 1)
    unpark(scheduler, 1)
    plans = [run_step(scheduler) for _ in range(2)]
    assert [(plan.starts, plan.counts, plan.sample) for plan in plans] == [([8], [8], []), ([16], [2], [0])]


def test_nobody_waits_for_the_prefix_that_a_parked_request_was_computing() -> None:
    scheduler = build_scheduler(long_prefill=4)
    scheduler.add(add_request(1, range(18)))
    scheduler.add(add_request(2, range(18)))
    assert entered(run_step(scheduler)) == [(1, 0)]
    park(scheduler, 1)
    assert entered(run_step(scheduler)) == [(2, 4)]


def test_its_late_token_is_delivered_and_it_waits_for_it() -> None:
    scheduler = build_scheduler(steps_in_flight=2)
    one = add_request(1)
    scheduler.add(one)
    first = plan_of(scheduler)
    park(scheduler, 1)
    unpark(scheduler, 1)
    assert scheduler.schedule() is None, "the token that it needs is not known"
    assert complete(scheduler, first, 61) == [TokenDelta(1, 0, [61])]
    plan = plan_of(scheduler)
    assert (plan.new[0].tokens, plan.starts) == ([*one.prompt, 61], [5])


def test_its_late_token_can_be_its_last() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, max_tokens=1))
    plan = plan_of(scheduler)
    park(scheduler, 1)
    assert complete(scheduler, plan, 61) == [TokenDelta(1, 0, [61], "length")]
    assert not scheduler.has_work
    assert scheduler.stats().free_blocks == 20
    assert not scheduler.unpark(1)


def test_it_can_fail_in_the_step_that_was_in_flight() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1))
    plan = plan_of(scheduler)
    park(scheduler, 1)
    update = scheduler.update(StepResult(plan.step, [-1], [RowFailure(0, "ValueError", "bad")]))
    assert [failed.request for failed in update.failures] == [1]
    assert not scheduler.has_work


def test_it_returns_before_those_that_came_later() -> None:
    scheduler = build_scheduler(seqs=1)
    for number in (1, 2, 3):
        scheduler.add(add_request(number))
    run_step(scheduler)
    park(scheduler, 1)
    assert entered(run_step(scheduler)) == [(2, 0)]
    park(scheduler, 2)
    unpark(scheduler, 2, 1)
    assert entered(*run_to_end(scheduler)) == [(1, 5), (2, 5), (3, 0)]


@pytest.mark.parametrize(("caching", "start"), [(False, 0), (True, 4)])
def test_its_blocks_go_to_whoever_needs_them_and_it_computes_them_anew(caching: bool, start: int) -> None:
    scheduler = build_scheduler(blocks=4, caching=caching)
    one = add_request(1)
    scheduler.add(one)
    run_step(scheduler)
    run_step(scheduler)
    park(scheduler, 1)
    scheduler.add(add_request(2, prompt=9, max_tokens=3))
    assert entered(run_step(scheduler)) == [(2, 0)]
    unpark(scheduler, 1)
    assert run_step(scheduler).new == [], "there is not room for both"
    assert scheduler.abort(2)
    plan = plan_of(scheduler)
    assert (plan.new[0].tokens, plan.new[0].prompt_length) == ([*one.prompt, TOKEN, TOKEN], 5)
    assert (plan.starts, plan.counts, plan.sample) == ([start], [7 - start], [0])


def test_blocks_that_a_step_in_flight_still_writes_can_go_to_others() -> None:
    scheduler = build_scheduler(blocks=4, steps_in_flight=2)
    scheduler.add(add_request(1))
    first = plan_of(scheduler)
    park(scheduler, 1)
    scheduler.add(add_request(2, prompt=15, max_tokens=2))
    second = plan_of(scheduler)
    assert set(first.new[0].blocks) < set(second.new[0].blocks)
    assert complete(scheduler, first, 61) == [TokenDelta(1, 0, [61])]
    complete(scheduler, second)
    assert complete(scheduler, plan_of(scheduler), 71) == [TokenDelta(2, 0, [71])]


def test_the_one_parked_longest_loses_its_blocks_first_and_only_as_many_as_need_be() -> None:
    scheduler = build_scheduler(blocks=9, budget=20, caching=False)
    for number in (1, 2, 3):
        scheduler.add(add_request(number))
    for _ in range(3):
        run_step(scheduler)
    park(scheduler, 2, 1, 3)
    scheduler.add(add_request(4, prompt=18))
    assert entered(run_step(scheduler)) == [(4, 0)]
    assert scheduler.abort(4)
    unpark(scheduler, 1, 3, 2)
    assert entered(run_step(scheduler)) == [(1, 7), (2, 0), (3, 7)]


def test_nothing_is_taken_in_vain() -> None:
    scheduler = build_scheduler(blocks=9)
    for number in (1, 2):
        scheduler.add(add_request(number))
    run_step(scheduler)
    run_step(scheduler)
    park(scheduler, 1)
    scheduler.add(add_request(3, prompt=28, max_tokens=5))  # seven blocks; those of the parked one and one more are too few
    assert entered(run_step(scheduler)) == []
    unpark(scheduler, 1)
    assert entered(run_step(scheduler)) == [(1, 6)]


def test_a_prefix_that_was_found_stays_while_room_is_made() -> None:
    """What a parked request loses is no room for one that found it there."""
    scheduler = build_scheduler(budget=20, blocks=5, block_size=2, max_model_len=12)
    scheduler.add(add_request(1, range(4), max_tokens=4))
    scheduler.add(add_request(2, 1, max_tokens=4))
    run_step(scheduler)
    run_step(scheduler)
    park(scheduler, 1, 2)
    scheduler.add(add_request(3, range(9), max_tokens=2))  # the whole pool, two blocks of which the first one holds
    assert entered(run_step(scheduler)) == [(3, 4)]


def test_one_that_waits_again_gives_its_blocks_to_one_before_it() -> None:
    """Else both would wait for ever: one for blocks, the other for its turn."""
    scheduler = build_scheduler(blocks=4, caching=False)
    for number in (1, 2):
        scheduler.add(add_request(number, prompt=3, max_tokens=12))
    for _ in range(5):
        run_step(scheduler)
    park(scheduler, 1, 2)
    scheduler.add(add_request(3, prompt=7, max_tokens=3))
    assert entered(run_step(scheduler)) == [(3, 0)], "at the cost of 1"
    park(scheduler, 3)
    unpark(scheduler, 2, 3, 1)
    assert entered(*run_to_end(scheduler))[0] == (1, 0)


@pytest.mark.parametrize("again", [False, True], ids=["parked", "waiting again"])
def test_an_abort_frees_what_it_kept(again: bool) -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1))
    run_step(scheduler)
    park(scheduler, 1)
    if again:
        unpark(scheduler, 1)
    assert scheduler.abort(1)
    check_integrity(scheduler)
    assert not scheduler.has_work
    assert scheduler.stats().free_blocks == 20


def test_a_request_can_be_parked_before_its_first_turn() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1))
    park(scheduler, 1)
    assert scheduler.schedule() is None
    unpark(scheduler, 1)
    assert entered(run_step(scheduler)) == [(1, 0)]


def test_what_cannot_be_parked_or_is_not_parked_says_so() -> None:
    scheduler = build_scheduler()
    assert not scheduler.park(1)
    assert not scheduler.unpark(1)
    scheduler.add(add_request(1))
    assert not scheduler.unpark(1)
    park(scheduler, 1, 1)
    unpark(scheduler, 1)
    assert not scheduler.unpark(1)
