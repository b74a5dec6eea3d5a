"""Who gives way where blocks are shared: with a prompt that is held for siblings, or with what the prefix cache holds."""

import pytest
from schedulers import add_request, build_scheduler, entered, run_step, run_to_end

from ringpost.sched.integrity import check_integrity
from ringpost.sched.scheduler import Scheduler


def places_of(scheduler: Scheduler) -> tuple[list[int], list[int]]:
    """The requests that run, and those that wait."""
    places = scheduler.places
    return [one.request_id for one in places.running], [one.request_id for one in places.waiting]


@pytest.mark.parametrize("caching", [True, False])
def test_the_first_of_all_gets_a_block_of_one_whose_blocks_are_all_held_for_its_siblings_too(caching: bool) -> None:
    scheduler = build_scheduler(seqs=2, budget=2, blocks=4, caching=caching)
    scheduler.add(add_request(1, prompt=2, max_tokens=14))
    scheduler.add(add_request(2, prompt=6, siblings=1))
    for _ in range(7):
        run_step(scheduler)
    [held] = scheduler.places.siblings.held
    leader = scheduler.places.requests[2]
    assert (held.block_table, scheduler.stats().free_blocks) == (leader.block_table, 0)
    plan = run_step(scheduler)
    assert (plan.rows, plan.starts, places_of(scheduler)) == ([0], [8], ([1], [2, 3]))
    assert not held.block_table
    run_to_end(scheduler)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_better_priority_takes_the_place_of_one_whose_blocks_are_all_held_for_its_siblings_too(rows: int) -> None:
    scheduler = build_scheduler(seqs=rows, blocks=4, policy="priority")
    scheduler.add(add_request(1, prompt=7, priority=2, siblings=1))
    run_step(scheduler)
    scheduler.add(add_request(3, prompt=5 if rows == 1 else 13, max_tokens=2))
    assert entered(run_step(scheduler)) == [(3, 0)]
    assert places_of(scheduler) == ([3], [1, 2])
    run_to_end(scheduler)


def test_what_a_better_priority_shares_with_a_victim_is_not_counted_as_freed() -> None:
    scheduler = build_scheduler(blocks=7, budget=40, policy="priority")
    scheduler.add(add_request(1, prompt=12, max_tokens=4))
    scheduler.add(add_request(2, range(8), priority=2, max_tokens=4))
    run_step(scheduler)
    scheduler.add(add_request(3, range(16), priority=1, max_tokens=4))
    run_step(scheduler)
    assert (places_of(scheduler), scheduler.stats().preemptions) == (([1, 2], [3]), 0), "nobody gives way in vain"
    run_to_end(scheduler)
    check_integrity(scheduler)
