"""Requests in flight at deaths: who runs alone, for how long, and who is convicted."""

import pytest
from schedulers import add_request, build_scheduler, complete, entered, plan_of, restart, run_step, run_to_end

from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.results import RowFailure, StepResult
from ringpost.sched.integrity import check_integrity
from ringpost.sched.scheduler import Scheduler


def die(scheduler: Scheduler, *convicted: int) -> None:
    """Plan as many steps as may be in flight, and lose them."""
    while scheduler.schedule() is not None:
        check_integrity(scheduler)
    restart(scheduler, *convicted)


def members(scheduler: Scheduler, plan: StepPlan) -> list[int]:
    """Whom a plan just made is for."""
    names = {request.row: request.request_id for request in scheduler.places.running}
    return [names[row] for row in plan.rows]


def deaths(scheduler: Scheduler) -> dict[int, int]:
    return {number: request.deaths for number, request in sorted(scheduler.places.requests.items()) if request.deaths}


def alone(scheduler: Scheduler) -> int | None:
    return scheduler.alone


def step(scheduler: Scheduler) -> tuple[list[int], int | None]:
    """Make a step; whom it was for, and who was said to be alone while it was in flight."""
    plan = plan_of(scheduler)
    found = members(scheduler, plan), scheduler.alone
    complete(scheduler, plan)
    assert scheduler.suspects.alone is None
    return found


def suspected(*numbers: int, steps_in_flight: int = 1) -> Scheduler:
    """A scheduler whose requests, with five prompt tokens each, were in flight at two deaths."""
    scheduler = build_scheduler(budget=20, steps_in_flight=steps_in_flight)
    for number in numbers:
        scheduler.add(add_request(number))
    for _ in range(2):
        die(scheduler)
    assert deaths(scheduler) == dict.fromkeys(numbers, 2)
    return scheduler


def test_after_one_death_all_go_on_together() -> None:
    scheduler = build_scheduler(budget=20)
    for number in (1, 2):
        scheduler.add(add_request(number))
    die(scheduler)
    assert deaths(scheduler) == {1: 1, 2: 1}
    assert step(scheduler) == ([1, 2], None)


def test_after_two_deaths_each_runs_alone_until_it_is_cleared() -> None:
    scheduler = suspected(1, 2, 3)
    scheduler.add(add_request(4))
    assert [step(scheduler) for _ in range(4)] == [([1], 1), ([2], 2), ([3], 3), ([1, 2, 3, 4], None)]
    assert deaths(scheduler) == {}
    run_to_end(scheduler)


def test_progress_between_two_deaths_clears() -> None:
    scheduler = build_scheduler(budget=20)
    for number in (1, 2):
        scheduler.add(add_request(number))
    die(scheduler)
    run_step(scheduler)
    assert deaths(scheduler) == {}
    die(scheduler)
    assert deaths(scheduler) == {1: 1, 2: 1}


def test_only_those_in_flight_have_a_death() -> None:
    scheduler = build_scheduler(seqs=2, budget=20)
    for number in (1, 2, 3):
        scheduler.add(add_request(number))
    run_step(scheduler)
    restart(scheduler)  # between two steps
    assert deaths(scheduler) == {}
    die(scheduler)
    assert deaths(scheduler) == {1: 1, 2: 1}


def test_in_two_steps_in_flight_it_is_one_death() -> None:
    scheduler = build_scheduler(steps_in_flight=2)
    scheduler.add(add_request(1))
    die(scheduler)
    assert deaths(scheduler) == {1: 1}


def test_a_third_death_convicts_the_one_in_flight_alone() -> None:
    scheduler = suspected(1, 2)
    assert step(scheduler) == ([1], 1)
    plan_of(scheduler)
    assert alone(scheduler) == 2
    restart(scheduler, 2)
    assert alone(scheduler) is None
    assert not scheduler.abort(2)
    assert deaths(scheduler) == {}
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.free_blocks) == (0, 1, 20)
    assert step(scheduler) == ([1], None)


def test_a_third_death_while_nothing_is_in_flight_convicts_nobody() -> None:
    scheduler = suspected(1, 2)
    restart(scheduler)
    assert deaths(scheduler) == {1: 2, 2: 2}


def test_with_one_alone_nothing_else_is_in_flight() -> None:
    scheduler = build_scheduler(steps_in_flight=2)
    scheduler.add(add_request(1))
    first, second = plan_of(scheduler), plan_of(scheduler)
    scheduler.add(add_request(2, deaths=2))
    for plan in (first, second):
        assert scheduler.schedule() is None
        assert scheduler.suspects.alone is None
        complete(scheduler, plan)
    alone = plan_of(scheduler)
    assert (members(scheduler, alone), scheduler.alone) == ([2], 2)
    assert scheduler.schedule() is None
    complete(scheduler, alone)
    plans = [plan_of(scheduler), plan_of(scheduler)]
    assert [members(scheduler, plan) for plan in plans] == [[1, 2], [1, 2]]


def test_it_goes_on_alone_over_the_chunks_that_were_lost_and_no_longer() -> None:
    scheduler = build_scheduler(steps_in_flight=2, long_prefill=4)
    scheduler.add(add_request(1, 30))
    scheduler.add(add_request(2, 4))
    die(scheduler)
    die(scheduler)  # in flight: positions 0 to 8 of request 1, and 0 to 5 of request 2
    first = run_step(scheduler)
    assert (entered(first), first.counts) == ([(1, 0)], [8]), "a long prompt alone needs no small chunks"
    second = run_step(scheduler)
    assert (entered(second), second.counts) == ([(2, 0)], [4])
    assert scheduler.places.requests[2].clear_at == 5
    assert step(scheduler) == ([2], 2)
    assert step(scheduler) == ([2, 1], None)


def test_it_has_to_get_past_the_farthest_point_of_all_its_deaths() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, 30))
    run_step(scheduler)
    die(scheduler)  # with positions 8 to 16
    die(scheduler)  # with positions 0 to 8
    assert deaths(scheduler) == {1: 2}
    scheduler.add(add_request(2, 4))
    assert [step(scheduler) for _ in range(3)] == [([1], 1), ([1], 1), ([1], None)]


def test_deaths_that_it_brings_along_count_until_it_has_a_token() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, 12, output=[5, 6], deaths=2))
    scheduler.add(add_request(2, 4, deaths=1))
    scheduler.add(add_request(3, 2))
    assert [step(scheduler) for _ in range(2)] == [([1], 1), ([1], 1)]
    assert deaths(scheduler) == {2: 1}
    die(scheduler)
    assert deaths(scheduler) == {1: 1, 2: 2, 3: 1}
    assert step(scheduler) == ([2], 2)


def test_suspects_come_first_by_rank_among_themselves() -> None:
    scheduler = build_scheduler(seqs=2, policy="priority")
    for number, priority, died in ((1, -9, 0), (2, 5, 2), (3, 3, 2), (4, 5, 2)):
        scheduler.add(add_request(number, 3, priority=priority, deaths=died))
    assert [step(scheduler) for _ in range(4)] == [([3], 3), ([2], 2), ([4], 4), ([3, 1], None)]


def test_the_one_that_has_begun_goes_on_before_others_that_rank_before_it() -> None:
    scheduler = build_scheduler(policy="priority")
    scheduler.add(add_request(1, 12, priority=2, deaths=2))
    assert step(scheduler) == ([1], 1)
    scheduler.add(add_request(2, 12, priority=1, deaths=2))
    assert [step(scheduler) for _ in range(3)] == [([1], 1), ([2], 2), ([2], 2)]


def test_it_takes_a_row_from_the_last_one_which_keeps_its_blocks() -> None:
    scheduler = build_scheduler(seqs=2)
    for number in (1, 2):
        scheduler.add(add_request(number, 4, max_tokens=3))
    run_step(scheduler)
    scheduler.add(add_request(3, 3, max_tokens=1, deaths=2))
    assert step(scheduler) == ([3], 3)
    plan = run_step(scheduler)
    assert (entered(plan), plan.counts) == ([(2, 4)], [1, 1])
    assert scheduler.stats().preemptions == 0


def test_nobody_waits_for_the_prefix_of_the_one_that_lost_its_row() -> None:
    scheduler = build_scheduler(seqs=1, budget=4)
    scheduler.add(add_request(1, range(18)))
    run_step(scheduler)
    assert any(not entry.ready for entry in scheduler.places.kv_cache_manager.pool.entries())
    scheduler.add(add_request(2, 3, deaths=2))
    assert step(scheduler) == ([2], 2)
    assert all(entry.ready for entry in scheduler.places.kv_cache_manager.pool.entries())


def test_it_takes_blocks_first_from_those_without_a_row_then_from_those_that_run() -> None:
    scheduler = build_scheduler(blocks=6, budget=20, caching=False)
    for number in (1, 2):
        scheduler.add(add_request(number, 7, max_tokens=2))
        run_step(scheduler)
        assert scheduler.park(1)
    tables = scheduler.places.requests
    assert [len(tables[number].block_table) for number in (1, 2)] == [2, 2]
    scheduler.add(add_request(3, 16, max_tokens=1, deaths=2))
    assert step(scheduler) == ([3], 3)
    assert [len(tables[number].block_table) for number in (1, 2)] == [0, 2]
    assert scheduler.stats().preemptions == 0
    scheduler.add(add_request(4, 20, max_tokens=1, deaths=2))
    assert step(scheduler) == ([4], 4)
    assert scheduler.stats().preemptions == 1
    assert scheduler.unpark(1)
    assert entered(*run_to_end(scheduler)) == [(1, 0), (2, 0)]


@pytest.mark.parametrize(("blocks", "preemptions"), [(2, 1), (3, 0)])
def test_it_gets_the_block_of_its_next_token_from_whoever_has_one(blocks: int, preemptions: int) -> None:
    scheduler = build_scheduler(blocks=blocks, steps_in_flight=2, caching=False)
    scheduler.add(add_request(1, 4, max_tokens=4))
    for _ in range(2):
        die(scheduler)
    assert scheduler.places.requests[1].clear_at == 5
    assert scheduler.park(1)
    scheduler.add(add_request(2, 3, max_tokens=4))
    run_step(scheduler)
    assert scheduler.unpark(1)
    assert entered(run_step(scheduler)) == [(1, 0)]
    plan = run_step(scheduler)
    assert (entered(plan), plan.counts, len(plan.new[0].blocks)) == ([(1, 4)], [1], 2)
    assert (deaths(scheduler), scheduler.stats().preemptions) == ({}, preemptions)
    run_to_end(scheduler)


def test_a_parked_one_lets_the_others_go_on() -> None:
    scheduler = suspected(1, 2)
    assert scheduler.park(1)
    assert [step(scheduler) for _ in range(2)] == [([2], 2), ([2], None)]
    assert scheduler.unpark(1)
    assert [step(scheduler) for _ in range(2)] == [([1], 1), ([1, 2], None)]


def test_one_parked_in_flight_keeps_the_step_to_itself_and_can_be_convicted() -> None:
    scheduler = suspected(1, 2, steps_in_flight=2)
    plan = plan_of(scheduler)
    assert scheduler.park(1)
    assert scheduler.schedule() is None
    complete(scheduler, plan)
    plan_of(scheduler)
    assert scheduler.alone == 2
    assert scheduler.park(2)
    restart(scheduler, 2)


def test_one_aborted_in_flight_keeps_the_step_to_itself() -> None:
    scheduler = suspected(1, steps_in_flight=2)
    plan = plan_of(scheduler)
    assert scheduler.abort(1)
    scheduler.add(add_request(2))
    assert (scheduler.schedule(), alone(scheduler)) == (None, 1)
    complete(scheduler, plan)
    assert alone(scheduler) is None
    assert step(scheduler) == ([2], None)


def test_one_aborted_in_flight_is_not_convicted() -> None:
    scheduler = suspected(1, 2)
    plan_of(scheduler)
    assert scheduler.abort(1)
    restart(scheduler)
    assert step(scheduler) == ([2], 2)


def test_one_aborted_before_its_turn_lets_the_others_go_on() -> None:
    scheduler = suspected(1, 2)
    assert scheduler.abort(1)
    assert step(scheduler) == ([2], 2)


def test_one_aborted_between_its_chunks_frees_what_it_holds() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, 12, deaths=2))
    assert step(scheduler) == ([1], 1)
    assert scheduler.abort(1)
    check_integrity(scheduler)
    assert scheduler.stats().free_blocks == 20
    assert not scheduler.has_work


def test_a_row_that_fails_ends_it() -> None:
    scheduler = suspected(1, 2)
    plan = plan_of(scheduler)
    update = scheduler.update(StepResult(plan.step, [5], [RowFailure(0, "ValueError", "bad")]))
    check_integrity(scheduler)
    assert [(delta.request, delta.finish_reason) for delta in update.deltas] == [(1, "error")]
    assert step(scheduler) == ([2], 2)


@pytest.mark.parametrize(("preempt_running", "again"), [(False, []), (True, [(1, 0)])])
def test_what_was_computed_can_be_forgotten_between_its_chunks(preempt_running: bool, again: list[tuple[int, int]]) -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, 20, deaths=2))
    run_step(scheduler)
    scheduler.reset_prefix_cache(preempt_running=preempt_running)
    check_integrity(scheduler)
    plan = plan_of(scheduler)
    assert (entered(plan), scheduler.alone) == (again, 1)


def test_it_finds_what_others_have_computed() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, range(8)))
    run_step(scheduler)
    scheduler.add(add_request(2, range(10), deaths=2))
    assert entered(run_step(scheduler)) == [(2, 8)]
    assert scheduler.stats().prefix_hits == 8


def test_what_it_has_found_needs_room_once_its_owner_has_given_way() -> None:
    scheduler = build_scheduler(blocks=6, budget=20)
    scheduler.add(add_request(1, range(8), max_tokens=4))
    scheduler.add(add_request(2, 12, max_tokens=4))
    run_step(scheduler)
    scheduler.add(add_request(3, range(16), max_tokens=4, deaths=2))
    assert entered(run_step(scheduler)) == [(3, 8)]
    assert scheduler.stats().preemptions == 2
    run_to_end(scheduler)


def test_it_does_not_wait_for_what_others_are_computing() -> None:
    scheduler = build_scheduler(budget=8)
    scheduler.add(add_request(1, range(18)))
    run_step(scheduler)
    scheduler.add(add_request(2, range(18), deaths=2))
    assert entered(run_step(scheduler)) == [(2, 8)]


def test_one_that_may_only_have_waited_when_cores_died_has_to_die_alone_twice() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, deaths=2))
    plan_of(scheduler)
    restart(scheduler)
    plan_of(scheduler)
    restart(scheduler, 1)
