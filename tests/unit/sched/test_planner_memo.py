"""The planner remembers for whom there was no room, and asks again once there may be some."""

from schedulers import add_request, build_scheduler, complete, entered, plan_of, run_step


def test_it_asks_again_when_one_with_more_blocks_is_parked_in_the_place_of_another() -> None:
    scheduler = build_scheduler(blocks=9, budget=40, caching=False)
    scheduler.add(add_request(1, prompt=5))
    run_step(scheduler)
    scheduler.park(1)
    scheduler.add(add_request(2, prompt=17))
    run_step(scheduler)
    scheduler.add(add_request(3, prompt=17))
    assert entered(run_step(scheduler)) == []
    scheduler.park(2)
    scheduler.unpark(1)
    assert entered(run_step(scheduler)) == [(1, 5), (3, 0)]
    assert not scheduler.places.requests[2].block_table


def test_it_asks_again_when_one_that_ended_leaves_what_it_shared_to_one_without_a_row() -> None:
    scheduler = build_scheduler(blocks=10, budget=40, policy="priority")
    scheduler.add(add_request(1, range(13), max_tokens=3))
    run_step(scheduler)
    scheduler.add(add_request(2, range(13)))
    assert entered(run_step(scheduler)) == [(2, 12)]
    scheduler.park(2)
    scheduler.add(add_request(3, prompt=24))
    plan = plan_of(scheduler)
    assert entered(plan) == []
    assert [delta.finish_reason for delta in complete(scheduler, plan)] == ["length"]
    scheduler.add(add_request(4, prompt=4, priority=-1))  # it takes as many blocks as the other has freed
    assert entered(run_step(scheduler)) == [(4, 0), (3, 0)]
