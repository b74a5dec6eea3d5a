"""The KV of a prompt that waits for the siblings that have no row yet: what it costs, and when it is given up."""

import pytest
from schedulers import TOKEN, add_request, build_scheduler, complete, entered, plan_of, run_step, run_to_end

from ringpost.ipc.messages.results import StepResult
from ringpost.sched.block_pool import BlockPool
from ringpost.sched.scheduler import Scheduler

CACHING = pytest.mark.parametrize("caching", [True, False])


def work(monkeypatch: pytest.MonkeyPatch, siblings: int, steps: int) -> int:
    """How many blocks a scheduler that is short of them looks at in its first steps."""
    looked_at = [0]

    def counted(name: str) -> None:
        method = getattr(BlockPool, name)

        def count(pool: BlockPool, block: int) -> object:
            looked_at[0] += 1
            return method(pool, block)

        patch.setattr(BlockPool, name, count)

    scheduler = build_scheduler(seqs=4, budget=32, blocks=14, caching=False)
    scheduler.add(add_request(1, 30, max_tokens=9, siblings=siblings))
    with monkeypatch.context() as patch:
        for name in ("references", "share"):
            counted(name)
        for _ in range(steps):
            plan = scheduler.schedule()
            assert plan is not None
            complete_unchecked(scheduler, plan.step, len(plan.sample))
    assert scheduler.places.num_preemptions, "there were enough blocks"
    return looked_at[0]


def complete_unchecked(scheduler: Scheduler, step: int, count: int) -> None:
    """Apply a step's result without the look at every block that check_integrity takes."""
    scheduler.update(StepResult(step, [TOKEN] * count))


def test_those_that_wait_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (work(monkeypatch, siblings, 20) for siblings in (20, 200))
    assert few == many


@CACHING
def test_the_prompt_is_computed_once_even_when_those_that_run_lose_their_blocks(caching: bool) -> None:
    scheduler = build_scheduler(seqs=4, budget=32, blocks=14, caching=caching)
    scheduler.add(add_request(1, 30, max_tokens=9, siblings=12))
    plans = run_to_end(scheduler)
    assert scheduler.stats().preemptions > 0
    assert entered(*plans)[0] == (1, 0)
    assert min(start for _, start in entered(*plans)[1:]) >= 28
    assert scheduler.stats().free_blocks == 14


@CACHING
def test_others_that_need_it_get_what_is_held(caching: bool) -> None:
    scheduler = build_scheduler(budget=40, blocks=9, caching=caching)
    scheduler.add(add_request(1, 30, max_tokens=2, siblings=2))
    run_step(scheduler)
    assert scheduler.park(2)
    assert scheduler.park(3)
    run_step(scheduler)
    assert scheduler.stats().free_blocks == 1
    scheduler.add(add_request(9, 30, max_tokens=4))
    assert entered(run_step(scheduler)) == [(9, 0)]
    run_step(scheduler)
    assert scheduler.unpark(2)
    assert scheduler.unpark(3)
    assert entered(*run_to_end(scheduler))[0] == (2, 0)
    assert scheduler.stats().free_blocks == 9


@pytest.mark.parametrize("keep", [True, False])
def test_a_reset_leaves_it_to_those_that_wait_unless_nothing_is_to_be_kept(keep: bool) -> None:
    scheduler = build_scheduler(seqs=1, budget=20, caching=False)
    scheduler.add(add_request(1, 9, max_tokens=2, siblings=1))
    run_step(scheduler)
    scheduler.reset_prefix_cache(preempt_running=not keep)
    assert entered(*run_to_end(scheduler)) == [*([] if keep else [(1, 0)]), (2, 8 if keep else 0)]


def test_it_is_held_until_the_last_one_has_ended() -> None:
    scheduler = build_scheduler(seqs=1, budget=20)
    scheduler.add(add_request(1, 9, siblings=2))
    run_step(scheduler)
    for number, free in ((1, 17), (3, 17), (2, 20)):
        assert scheduler.abort(number)
        assert scheduler.stats().free_blocks == free
    assert not scheduler.has_work


def test_a_leader_that_lost_its_blocks_before_the_result_leaves_nothing_to_hold() -> None:
    scheduler = build_scheduler(budget=20, caching=False)
    scheduler.add(add_request(1, 10, siblings=2))
    plan = plan_of(scheduler)
    scheduler.reset_prefix_cache(preempt_running=True)
    complete(scheduler, plan)
    assert entered(*(run_step(scheduler) for _ in range(3))) == [(1, 0), (2, 0), (3, 9)]


def test_each_can_be_overtaken_as_often_as_if_it_had_come_alone() -> None:
    together, alone = build_scheduler(), build_scheduler()
    together.add(add_request(1, siblings=2))
    for number in (1, 2, 3):
        alone.add(add_request(number))
    turns = [[scheduler.places.requests[number].turn for number in (1, 2, 3)] for scheduler in (together, alone)]
    assert turns[0] == turns[1]


def test_one_that_comes_back_takes_what_is_found_if_that_is_more() -> None:
    scheduler = build_scheduler(budget=20)
    scheduler.add(add_request(1, 9, siblings=1))
    for _ in range(7):
        run_step(scheduler)
    scheduler.places.preempt(scheduler.places.requests[2])
    assert entered(run_step(scheduler)) == [(2, 12)]


def test_after_a_reset_nothing_is_offered_behind_what_cannot_be_found() -> None:
    scheduler = build_scheduler(seqs=1, budget=20)
    scheduler.add(add_request(1, 9, max_tokens=8, siblings=1))
    run_step(scheduler)
    scheduler.reset_prefix_cache()
    run_to_end(scheduler)
    assert scheduler.places.kv_cache_manager.pool.entries() == ()
