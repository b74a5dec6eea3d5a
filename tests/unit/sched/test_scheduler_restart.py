"""When the workers were replaced: what is lost, what stays, and how it goes on."""

import pytest
from schedulers import TOKEN, add_request, build_scheduler, complete, entered, plan_of, restart, run_step, run_to_end

from ringpost.ipc.messages.plans import NewRow, StepPlan
from ringpost.ipc.messages.results import StepResult
from ringpost.sched.errors import ResultMismatch
from ringpost.sched.integrity import check_integrity
from ringpost.sched.scheduler import Scheduler


def names(scheduler: Scheduler) -> tuple[list[int], list[int], list[int]]:
    """Who runs, who waits, who is parked."""
    places = scheduler.places
    queues = (places.running, places.waiting, places.parked.values())
    running, waiting, parked = ([request.request_id for request in queue] for queue in queues)
    return running, waiting, parked


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_all_wait_again_with_the_tokens_that_they_have(steps_in_flight: int) -> None:
    scheduler = build_scheduler(budget=20, steps_in_flight=steps_in_flight)
    one, two = add_request(1), add_request(2, 3)
    scheduler.add(one)
    scheduler.add(two)
    run_step(scheduler)
    for _ in range(steps_in_flight):
        plan_of(scheduler)
    restart(scheduler)
    assert names(scheduler) == ([], [1, 2], [])
    assert scheduler.has_work
    new = [NewRow(0, 1, [*one.prompt, TOKEN], 5, [0, 1], one.params), NewRow(1, 2, [*two.prompt, TOKEN], 3, [2], two.params)]
    step = 1 + steps_in_flight
    assert plan_of(scheduler) == StepPlan(step, new, rows=[0, 1], starts=[0, 0], counts=[6, 4], blocks=[[], []], sample=[0, 1])


def test_it_goes_on_as_a_new_one_does_with_the_same_requests() -> None:
    old, new = build_scheduler(budget=20), build_scheduler(budget=20)
    for number in (1, 2, 3):
        old.add(add_request(number))
        new.add(add_request(number, output=[TOKEN] * 2))
    for _ in range(2):
        run_step(old)
    plan_of(old)
    assert old.abort(2)
    assert new.abort(2)
    restart(old)
    while new.has_work:
        expected = run_step(new)
        plan = run_step(old)
        assert (plan.new, plan.rows, plan.starts, plan.counts, plan.blocks, plan.sample) == (
            expected.new,
            expected.rows,
            expected.starts,
            expected.counts,
            expected.blocks,
            expected.sample,
        )
    assert not old.has_work


def test_those_that_ran_come_before_those_that_waited() -> None:
    scheduler = build_scheduler(seqs=2, budget=20)
    for number in (1, 2, 3, 4):
        scheduler.add(add_request(number))
    plan_of(scheduler)
    restart(scheduler)
    assert names(scheduler) == ([], [1, 2, 3, 4], [])
    assert entered(run_step(scheduler)) == [(1, 0), (2, 0)]


def test_by_priority_the_best_comes_first() -> None:
    scheduler = build_scheduler(seqs=2, budget=20, policy="priority")
    for number, priority in ((1, 2), (2, 1)):
        scheduler.add(add_request(number, priority=priority))
    plan_of(scheduler)
    scheduler.add(add_request(3, priority=0))
    restart(scheduler)
    assert entered(run_step(scheduler)) == [(3, 0), (2, 0)]


def test_parked_requests_stay_parked_without_blocks() -> None:
    scheduler = build_scheduler(caching=False)
    scheduler.add(add_request(1))
    run_step(scheduler)
    plan_of(scheduler)
    assert scheduler.park(1)
    restart(scheduler)
    assert names(scheduler) == ([], [], [1])
    assert scheduler.stats().free_blocks == 20
    assert scheduler.schedule() is None
    assert scheduler.unpark(1)
    plan = run_step(scheduler)
    assert (entered(plan), plan.counts) == ([(1, 0)], [6])


def test_nothing_that_was_computed_is_found() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, range(8), max_tokens=1))
    run_step(scheduler)
    restart(scheduler)
    scheduler.add(add_request(2, range(8), max_tokens=1))
    assert entered(run_step(scheduler)) == [(2, 0)]
    scheduler.add(add_request(3, range(8), max_tokens=1))
    assert entered(run_step(scheduler)) == [(3, 4)]


def test_nobody_waits_for_what_was_being_computed() -> None:
    scheduler = build_scheduler(budget=20)
    scheduler.add(add_request(1, range(18)))
    plan_of(scheduler)
    restart(scheduler)
    assert scheduler.abort(1)
    scheduler.add(add_request(2, range(18)))
    assert entered(run_step(scheduler)) == [(2, 0)]


@pytest.mark.parametrize("planned", [False, True])
def test_a_late_result_fits_no_step(planned: bool) -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1))
    lost = plan_of(scheduler)
    restart(scheduler)
    plan = plan_of(scheduler) if planned else None
    with pytest.raises(ResultMismatch, match="step 1 is the oldest" if planned else "no step is in flight"):
        scheduler.update(StepResult(lost.step, [TOKEN]))
    check_integrity(scheduler)
    assert plan is None or complete(scheduler, plan)[0].tokens == [TOKEN]


def test_lost_steps_do_not_count_and_neither_do_preemptions() -> None:
    scheduler = build_scheduler(steps_in_flight=2)
    scheduler.add(add_request(1))
    run_step(scheduler)
    for _ in range(2):
        plan_of(scheduler)
    restart(scheduler)
    stats = scheduler.stats()
    assert (stats.steps, stats.preemptions, stats.running, stats.waiting, stats.free_blocks) == (1, 0, 0, 1, 20)
    run_step(scheduler)
    plan_of(scheduler)
    assert scheduler.stats().steps == 2


def test_what_was_found_at_first_is_still_said_with_the_first_token() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, range(9), max_tokens=1))
    run_step(scheduler)
    run_step(scheduler)
    scheduler.add(add_request(2, range(9)))
    plan_of(scheduler)
    restart(scheduler)
    assert entered(run_step(scheduler)) == [(2, 0)]
    assert complete(scheduler, plan_of(scheduler))[0].cached_tokens == 8
    assert (scheduler.stats().prefix_queries, scheduler.stats().prefix_hits) == (18, 8)


def test_a_request_that_has_ended_in_a_lost_step_does_not_come_back() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1))
    plan_of(scheduler)
    assert scheduler.abort(1)
    restart(scheduler)
    assert not scheduler.has_work
    assert scheduler.schedule() is None


def test_a_token_too_many_that_was_planned_is_lost() -> None:
    """The last but one token ends the request; the step planned behind it dies with the workers."""
    scheduler = build_scheduler(steps_in_flight=2)
    scheduler.add(add_request(1, max_tokens=3))
    first, second = plan_of(scheduler), plan_of(scheduler)
    complete(scheduler, first)
    plan_of(scheduler)
    complete(scheduler, second)
    assert scheduler.schedule() is None
    restart(scheduler)
    assert [len(plan.sample) for plan in run_to_end(scheduler)] == [1]


def test_without_requests_nothing_happens() -> None:
    scheduler = build_scheduler()
    restart(scheduler)
    assert not scheduler.has_work
    scheduler.add(add_request(1))
    run_to_end(scheduler)
