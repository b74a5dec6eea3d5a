"""Several answers to one prompt: it is computed once, whatever becomes of the one that computes it."""

import pytest
from schedulers import STOP, TOKEN, add_request, build_scheduler, complete, entered, plan_of, restart, run_step, run_to_end
from slot_worker import SlotWorker, answer

from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.requests import Sibling
from ringpost.ipc.messages.results import RowFailure, StepResult
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.sched.arrivals import sibling_request
from ringpost.sched.errors import DuplicateRequest, RequestTooLong
from ringpost.sched.integrity import check_integrity
from ringpost.sched.scheduler import Scheduler

CACHING = pytest.mark.parametrize("caching", [True, False])


@CACHING
@pytest.mark.parametrize("prompt", [1, 2, 3, 4, 5, 7, 8, 9, 12])
@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_the_prompt_is_computed_once_and_each_gets_its_own_answer(prompt: int, caching: bool, steps_in_flight: int) -> None:
    scheduler = build_scheduler(seqs=3, budget=6, caching=caching, steps_in_flight=steps_in_flight)
    leader = add_request(1, prompt, max_tokens=6, siblings=4)
    requests = {1: leader} | {one.request: sibling_request(leader, one) for one in leader.siblings}
    worker = SlotWorker(4, 20, 3, requests)
    scheduler.add(leader)
    assert scheduler.stats().waiting == 5
    received: dict[int, list[int]] = {number: [] for number in requests}
    ends: dict[int, TokenDelta] = {}
    computed = 0
    while scheduler.has_work:
        plans = []
        while (plan := scheduler.schedule()) is not None:
            check_integrity(scheduler)
            plans.append(plan)
        for plan in plans:
            computed += sum(plan.counts)
            for delta in scheduler.update(worker.execute(plan)).deltas:
                assert delta.position == len(received[delta.request])
                assert delta.cached_tokens == (prompt - 1 if delta.request > 1 and not delta.position else 0)
                received[delta.request] += delta.tokens
                ends[delta.request] = delta
            check_integrity(scheduler)
    for number, request in requests.items():
        tokens, finish_reason, stop_reason = answer(request, scheduler.max_model_len)
        assert (received[number], ends[number].finish_reason, ends[number].stop_reason) == (tokens, finish_reason, stop_reason)
    surplus = steps_in_flight - 1  # a step may be planned for an answer that the one before has ended
    least = prompt + 4 + sum(len(tokens) - 1 for tokens in received.values())
    assert least <= computed <= least + 5 * surplus
    assert scheduler.stats().free_blocks == 20
    assert scheduler.stats().prefix_hits == 0


def test_those_that_follow_wait_until_the_result_is_there() -> None:
    scheduler = build_scheduler(budget=4)
    scheduler.add(add_request(1, 10, siblings=2))
    scheduler.add(add_request(9, 2))
    assert entered(run_step(scheduler), run_step(scheduler), run_step(scheduler)) == [(1, 0), (9, 0)]
    plan = run_step(scheduler)
    assert entered(plan) == [(2, 9), (3, 9)]
    assert len(plan.copies) == 2
    assert {source for source, _ in plan.copies} == {scheduler.places.requests[1].block_table[2]}
    assert len({target for _, target in plan.copies}) == 2


@pytest.mark.parametrize(("prompt", "copies"), [(1, 0), (5, 0), (9, 0), (2, 1), (4, 1), (8, 1)])
def test_a_block_of_which_nothing_is_needed_is_not_copied(prompt: int, copies: int) -> None:
    scheduler = build_scheduler(budget=20)
    scheduler.add(add_request(1, prompt, siblings=1))
    run_step(scheduler)
    assert len(plan_of(scheduler).copies) == copies


def test_a_leader_that_ends_with_its_first_token_leaves_its_blocks_to_the_others() -> None:
    scheduler = build_scheduler(budget=20, caching=False)
    scheduler.add(add_request(1, 10, siblings=2))
    assert complete(scheduler, plan_of(scheduler), STOP)[0].finish_reason == "stop"
    assert scheduler.stats().free_blocks == 17
    assert entered(plan_of(scheduler)) == [(2, 9), (3, 9)]


@CACHING
def test_a_leader_that_is_aborted_is_succeeded_by_the_next(caching: bool) -> None:
    scheduler = build_scheduler(budget=4, caching=caching)
    scheduler.add(add_request(1, 10, siblings=3))
    plan = plan_of(scheduler)
    assert scheduler.abort(2)
    assert scheduler.abort(1)
    check_integrity(scheduler)
    complete(scheduler, plan)
    plans = [run_step(scheduler) for _ in range(5)]
    assert [request for request, _ in entered(*plans)] == [3, 4]
    assert scheduler.places.requests[4].num_cached_tokens == 9
    run_to_end(scheduler)


def test_a_leader_that_fails_spoils_nothing() -> None:
    scheduler = build_scheduler(budget=20)
    scheduler.add(add_request(1, 10, siblings=1))
    plan = plan_of(scheduler)
    update = scheduler.update(StepResult(plan.step, [TOKEN], [RowFailure(0, "ValueError", "nan")]))
    assert [failure.request for failure in update.failures] == [1]
    check_integrity(scheduler)
    assert entered(run_step(scheduler)) == [(2, 0)]


def test_a_leader_that_is_parked_holds_nobody_up() -> None:
    scheduler = build_scheduler(budget=4)
    scheduler.add(add_request(1, 10, siblings=2))
    run_step(scheduler)
    assert scheduler.park(1)
    check_integrity(scheduler)
    plans = run_until_idle(scheduler)
    assert [request for request, _ in entered(*plans)] == [2, 3]
    assert scheduler.unpark(1)
    run_to_end(scheduler)


def run_until_idle(scheduler: Scheduler) -> list[StepPlan]:
    """Make steps until only the parked are left."""
    plans = []
    while (plan := scheduler.schedule()) is not None:
        complete(scheduler, plan)
        plans.append(plan)
    return plans


def test_one_that_follows_can_be_parked_and_does_not_follow_any_more() -> None:
    scheduler = build_scheduler(budget=4)
    scheduler.add(add_request(1, 10, siblings=2))
    plan = plan_of(scheduler)
    assert scheduler.park(2)
    check_integrity(scheduler)
    complete(scheduler, plan)
    assert scheduler.unpark(2)
    check_integrity(scheduler)
    run_to_end(scheduler)


def test_after_a_restart_they_follow_still_and_those_that_ran_compute_anew() -> None:
    scheduler = build_scheduler(budget=10, caching=False)
    scheduler.add(add_request(1, 10, siblings=2))
    plan_of(scheduler)
    restart(scheduler)
    assert entered(run_step(scheduler), run_step(scheduler)) == [(1, 0), (2, 9), (3, 9)]
    restart(scheduler)
    assert entered(run_step(scheduler), run_step(scheduler), run_step(scheduler)) == [(1, 0), (2, 0), (3, 0)]
    run_to_end(scheduler)


def test_what_waits_for_its_copy_is_not_overwritten() -> None:
    """The leader ends, and others want blocks, before the second one has a row."""
    scheduler = build_scheduler(seqs=1, budget=20, caching=False)
    scheduler.add(add_request(1, 6, max_tokens=3, siblings=1))
    scheduler.add(add_request(5, 30, max_tokens=1))
    run_step(scheduler)
    [held] = scheduler.places.siblings.held
    kept = list(held.block_table)
    assert kept == scheduler.places.requests[1].block_table
    run_step(scheduler)
    run_step(scheduler)
    assert 1 not in scheduler.places.requests
    plan = run_step(scheduler)
    assert entered(plan) == [(2, 5)]
    [(source, target)] = plan.copies
    assert (source, plan.new[0].blocks) == (kept[1], [kept[0], target])
    assert target not in kept
    run_to_end(scheduler)


def test_without_room_for_the_copy_it_computes_the_prompt_again() -> None:
    scheduler = build_scheduler(seqs=1, budget=20, blocks=2, caching=False)
    scheduler.add(add_request(1, 6, max_tokens=2, siblings=2))
    assert entered(*run_to_end(scheduler)) == [(1, 0), (2, 0), (3, 0)]


def test_a_prompt_that_is_held_is_given_up_after_what_waits_with_blocks() -> None:
    scheduler = build_scheduler(seqs=1, budget=20, blocks=6, caching=False)
    scheduler.add(add_request(8, 8, max_tokens=9))
    run_step(scheduler)
    assert scheduler.park(8)
    scheduler.add(add_request(1, 8, max_tokens=16, siblings=2))
    run_step(scheduler)
    assert scheduler.unpark(8)
    for _ in range(9):
        run_step(scheduler)
    requests = scheduler.places.requests
    assert [bool(requests[number].block_table) for number in (8, 1)] == [False, True]
    assert len(scheduler.places.siblings.held) == 1
    run_to_end(scheduler)


def test_a_number_that_is_there_already_is_refused_and_nothing_is_added() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(3))
    with pytest.raises(DuplicateRequest):
        scheduler.add(add_request(1, siblings=2))
    with pytest.raises(RequestTooLong):
        scheduler.add(add_request(10, 90, siblings=2))
    assert scheduler.stats().waiting == 1
    check_integrity(scheduler)


@pytest.mark.parametrize("output", [[TOKEN], [STOP]])
def test_a_leader_with_output_goes_on_alone(output: list[int]) -> None:
    scheduler = build_scheduler(budget=20)
    ended = scheduler.add(add_request(1, 10, output=output, siblings=2))
    check_integrity(scheduler)
    assert (ended is not None) == (output == [STOP])
    plans = run_to_end(scheduler)
    starts = dict(entered(*plans))
    assert starts[3] == 9
    assert starts.keys() == ({2, 3} if ended else {1, 2, 3})


def test_their_deaths_are_those_of_the_leader() -> None:
    scheduler = build_scheduler(budget=20)
    scheduler.add(add_request(1, 10, siblings=1, deaths=2))
    scheduler.add(add_request(5, 3))
    plans = [run_step(scheduler) for _ in range(3)]
    assert [entered(plan) for plan in plans] == [[(1, 0)], [(2, 9)], [(5, 0)]]
    run_to_end(scheduler)


def test_a_sibling_has_a_seed_of_its_own_and_no_prompt_logprobs() -> None:
    params = SamplingParams(seed=5, prompt_logprobs=2, logprobs=1)
    leader = add_request(1, siblings=1)
    leader = type(leader)(1, "r1", leader.prompt, params, 0.0, priority=3, output=[4], siblings=(Sibling(2, 6),))
    made = sibling_request(leader, leader.siblings[0])
    assert (made.request, made.priority, made.output, made.siblings) == (2, 3, [], ())
    assert made.params == SamplingParams(seed=6, logprobs=1)


def test_all_can_be_ended_at_once() -> None:
    scheduler = build_scheduler(seqs=1, budget=20)
    scheduler.add(add_request(1, 10, siblings=2))
    run_step(scheduler)
    scheduler.add(add_request(5))
    scheduler.add(add_request(6, siblings=1))
    scheduler.park(5)
    plan = plan_of(scheduler)
    deltas = scheduler.abort_all()
    check_integrity(scheduler)
    assert [(delta.request, delta.position, delta.tokens, delta.finish_reason) for delta in deltas] == [
        (1, 1, [], "abort"),
        *((number, 0, [], "abort") for number in (2, 3, 5, 6, 7)),
    ]
    assert complete(scheduler, plan) == []
    assert not scheduler.has_work
    assert scheduler.stats().free_blocks == 20
