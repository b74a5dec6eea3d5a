"""When blocks or rows run out: who gives way, for whom, and how it goes on."""

from itertools import pairwise

from schedulers import TOKEN, add_request, build_scheduler, entered, plan_of, run_step, run_to_end
from slot_worker import SlotWorker, token_at

from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.results import RowFailure, StepResult
from ringpost.sched.integrity import check_integrity
from ringpost.sched.precedence import MAX_OVERTAKES
from ringpost.sched.preemption import choose_victim, recompute_cost
from ringpost.sched.scheduler import Scheduler


def running(scheduler: Scheduler) -> list[int]:
    return [request.request_id for request in scheduler.places.running]


def waiting(scheduler: Scheduler) -> list[int]:
    return [request.request_id for request in scheduler.places.waiting]


def test_the_one_that_came_later_gives_way_and_goes_on_with_prompt_and_output() -> None:
    scheduler = build_scheduler(blocks=4, caching=False)
    one, two = add_request(1, prompt=3), add_request(2, prompt=3)
    scheduler.add(one)
    scheduler.add(two)
    for _ in range(6):
        run_step(scheduler)
    assert (running(scheduler), scheduler.stats().free_blocks) == ([1, 2], 0)
    plan = run_step(scheduler)
    assert (plan.rows, plan.blocks, running(scheduler), waiting(scheduler)) == ([0], [[1]], [1], [2])
    assert scheduler.stats().preemptions == 1
    assert run_step(scheduler).new == []
    assert waiting(scheduler) == [2]
    [new] = run_step(scheduler).new
    assert (new.request, new.tokens, new.prompt_length) == (2, [*two.prompt, *[TOKEN] * 6], 3)


def test_what_was_computed_is_found_again() -> None:
    scheduler = build_scheduler(blocks=4)
    for number in (1, 2):
        scheduler.add(add_request(number, prompt=3))
    for _ in range(7):
        run_step(scheduler)
    assert waiting(scheduler) == [2]
    scheduler.abort(1)
    assert entered(run_step(scheduler)) == [(2, 4)]


def test_of_equal_priorities_the_cheapest_gives_way() -> None:
    scheduler = build_scheduler(seqs=3, budget=20, blocks=7, caching=False)
    for number, prompt in ((1, 4), (2, 4), (3, 8)):
        scheduler.add(add_request(number, prompt))
    run_step(scheduler)
    assert running(scheduler) == [1, 2, 3]
    for _ in range(4):
        run_step(scheduler)
    run_step(scheduler)
    assert (running(scheduler), waiting(scheduler)) == ([1, 3], [2])


def test_the_worst_priority_gives_way_before_the_cheapest() -> None:
    scheduler = build_scheduler(seqs=3, budget=20, blocks=7, caching=False, policy="priority")
    for number, prompt in ((1, 4), (2, 4), (3, 8)):
        scheduler.add(add_request(number, prompt, priority=int(number == 3)))
    for _ in range(6):
        run_step(scheduler)
    assert (running(scheduler), waiting(scheduler)) == ([1, 2], [3])


def test_one_that_finds_nobody_behind_it_gives_way_itself() -> None:
    scheduler = build_scheduler(seqs=2, blocks=3, caching=False)
    scheduler.add(add_request(1, prompt=5, max_tokens=7))
    scheduler.add(add_request(2, prompt=2, max_tokens=7))
    scheduler.park(1)
    run_step(scheduler)
    scheduler.unpark(1)
    plans = [run_step(scheduler) for _ in range(3)]
    assert entered(*plans) == []
    assert scheduler.abort(2)
    assert entered(run_step(scheduler)) == [(1, 0)]


def test_shared_blocks_count_as_computed_and_one_that_would_free_nothing_is_passed_over() -> None:
    scheduler = build_scheduler(budget=20)
    scheduler.add(add_request(1, range(8)))
    run_step(scheduler)
    scheduler.add(add_request(2, range(10)))
    run_step(scheduler)
    one, two = (scheduler.places.requests[number] for number in (1, 2))
    manager = scheduler.places.kv_cache_manager
    assert (one.num_computed, two.num_computed, two.block_table[:2]) == (9, 10, one.block_table[:2])
    assert (recompute_cost(one, manager), recompute_cost(two, manager)) == (1, 2)
    assert choose_victim([one, two], manager) is one
    one.block_table.pop()
    assert choose_victim([one], manager) is None
    assert choose_victim([one, two], manager) is two


def test_a_block_for_each_running_request_stays_free_at_admission() -> None:
    scheduler = build_scheduler(blocks=6, budget=20)
    for number in (1, 2):
        scheduler.add(add_request(number, prompt=8, max_tokens=2))
    assert entered(run_step(scheduler)) == [(1, 0), (2, 0)]
    run_to_end(scheduler)
    assert scheduler.stats().preemptions == 0

    scheduler = build_scheduler(blocks=4, budget=20)
    for number in (1, 2):
        scheduler.add(add_request(number, prompt=8, max_tokens=2))
    assert entered(run_step(scheduler)) == [(1, 0)], "two of four are free, but one of them will soon be needed"


def test_blocks_without_a_row_go_before_anybody_gives_way() -> None:
    scheduler = build_scheduler(blocks=5, caching=False)
    for number in (1, 2, 3):
        scheduler.add(add_request(number, prompt=3, max_tokens=9))
    run_step(scheduler)
    run_step(scheduler)
    scheduler.park(1)
    for _ in range(4):
        run_step(scheduler)
    assert (running(scheduler), scheduler.stats().free_blocks) == ([2, 3], 0)
    run_step(scheduler)
    assert running(scheduler) == [2, 3]
    assert scheduler.places.requests[1].block_table == []
    assert scheduler.stats().preemptions == 0


def preempt_in_flight(scheduler: Scheduler, *, max_tokens: int = 8) -> StepResult:
    """Let a step with requests 1 and 2 be in flight in which 2 samples its sixth token, and preempt it. The step's result."""
    for number in (1, 2):
        scheduler.add(add_request(number, prompt=3, max_tokens=max_tokens))
    for _ in range(5):
        run_step(scheduler)
    plan, after = plan_of(scheduler), plan_of(scheduler)
    assert (len(plan.sample), len(after.sample), running(scheduler), waiting(scheduler)) == (2, 1, [1], [2])
    return StepResult(plan.step, [61, 62])


def test_a_late_token_is_delivered_once_and_its_request_waits_for_it() -> None:
    scheduler = build_scheduler(blocks=4, steps_in_flight=2, caching=False)
    result = preempt_in_flight(scheduler)
    assert scheduler.update(result).deltas == [TokenDelta(1, 5, [61]), TokenDelta(2, 5, [62], preemptions=1)]
    check_integrity(scheduler)
    scheduler.abort(1)
    plan = plan_of(scheduler)
    assert (entered(plan), plan.new[0].tokens[3:]) == ([(2, 0)], [*[TOKEN] * 5, 62])


def test_a_preempted_request_does_not_enter_while_its_token_is_in_flight() -> None:
    scheduler = build_scheduler(blocks=4, steps_in_flight=3, caching=False)
    preempt_in_flight(scheduler)
    scheduler.abort(1)
    assert scheduler.schedule() is None
    assert waiting(scheduler) == [2]


def test_a_late_token_can_be_the_last() -> None:
    scheduler = build_scheduler(blocks=4, steps_in_flight=2, caching=False)
    result = preempt_in_flight(scheduler)
    update = scheduler.update(StepResult(result.step, [61, 2]))
    assert update.deltas == [TokenDelta(1, 5, [61]), TokenDelta(2, 5, [2], "stop", preemptions=1)]
    check_integrity(scheduler)
    assert waiting(scheduler) == []


def test_a_preempted_request_can_fail_by_the_step_in_flight() -> None:
    scheduler = build_scheduler(blocks=4, steps_in_flight=2)
    result = preempt_in_flight(scheduler)
    update = scheduler.update(StepResult(result.step, result.tokens, [RowFailure(1, "ValueError", "nan")]))
    assert update.deltas == [TokenDelta(2, 5, [], "error", preemptions=1), TokenDelta(1, 5, [61])]
    check_integrity(scheduler)
    assert waiting(scheduler) == []


def test_a_better_priority_takes_a_row() -> None:
    scheduler = build_scheduler(seqs=2, policy="priority")
    for number, priority in ((1, 3), (2, 5), (3, 3)):
        scheduler.add(add_request(number, prompt=2, priority=priority))
        run_step(scheduler)
    assert (running(scheduler), waiting(scheduler)) == ([1, 3], [2])
    scheduler.add(add_request(4, prompt=2, priority=3))
    run_step(scheduler)
    assert (running(scheduler), waiting(scheduler)) == ([1, 3], [4, 2]), "an equal one does not"


def test_a_better_priority_takes_blocks_and_only_as_many_as_need_be() -> None:
    scheduler = build_scheduler(blocks=9, budget=40, policy="priority", caching=False)
    for number in (1, 2, 3):
        scheduler.add(add_request(number, prompt=5, priority=number, max_tokens=3))
    run_step(scheduler)
    scheduler.add(add_request(4, prompt=9, priority=0, max_tokens=3))
    assert entered(run_step(scheduler)) == [(4, 0)]
    assert (running(scheduler), waiting(scheduler)) == ([4, 1, 2], [3])


def test_nobody_gives_way_in_vain() -> None:
    scheduler = build_scheduler(blocks=6, budget=40, policy="priority", caching=False)
    scheduler.add(add_request(1, prompt=12, priority=0, max_tokens=5))
    scheduler.add(add_request(2, prompt=4, priority=2, max_tokens=5))
    run_step(scheduler)
    scheduler.add(add_request(3, prompt=12, priority=1, max_tokens=5))
    run_step(scheduler)
    assert (running(scheduler), scheduler.stats().preemptions) == ([1, 2], 0)


def test_blocks_kept_by_parked_requests_help_a_better_priority() -> None:
    scheduler = build_scheduler(blocks=10, budget=40, policy="priority", caching=False)
    scheduler.add(add_request(1, prompt=17, priority=5))
    run_step(scheduler)
    scheduler.park(1)
    scheduler.add(add_request(2, prompt=17, priority=5, max_tokens=20))
    run_step(scheduler)
    scheduler.add(add_request(3, prompt=24, priority=0))  # more than those of either
    assert entered(run_step(scheduler)) == [(3, 0)]
    assert waiting(scheduler) == [2]


def test_nobody_is_displaced_for_one_that_waits_for_a_prefix() -> None:
    scheduler = build_scheduler(seqs=2, budget=4, long_prefill=2, policy="priority")
    scheduler.add(add_request(1, prompt=3, max_tokens=30, priority=5))
    run_step(scheduler)
    run_step(scheduler)
    scheduler.add(add_request(2, range(24), priority=0))
    run_step(scheduler)
    scheduler.add(add_request(3, range(24), priority=0))
    steps = 0
    while scheduler.stats().preemptions == 0:
        assert running(scheduler) == [2, 1]
        run_step(scheduler)
        steps += 1
    assert steps > 5
    assert running(scheduler) == [2, 3]


def test_a_displaced_request_gets_the_tokens_that_it_would_have_got() -> None:
    scheduler = build_scheduler(seqs=1, policy="priority", blocks=12)
    requests = {1: add_request(1, prompt=6, max_tokens=20, priority=1)}
    worker = SlotWorker(4, 12, 1, requests)
    scheduler.add(requests[1])
    received: dict[int, list[int]] = {}
    number = 1
    while scheduler.has_work:
        if number < 6:
            number += 1
            requests[number] = add_request(number, prompt=3, max_tokens=2, priority=0)
            scheduler.add(requests[number])
        for delta in scheduler.update(worker.execute(plan_of(scheduler))).deltas:
            assert delta.position == len(received.setdefault(delta.request, []))
            received[delta.request] += delta.tokens
        check_integrity(scheduler)
    assert sorted(received) == sorted(requests)
    whole = [token_at(1, position) for position in range(20)]
    assert received[1] == whole[: len(received[1])]
    assert received[1][-1] in (2, 7) or len(received[1]) == 20


def test_an_endless_stream_of_better_priorities_starves_nobody() -> None:
    scheduler = build_scheduler(seqs=1, policy="priority")
    scheduler.add(add_request(0, max_tokens=3, priority=9))
    arrivals, overtaken = 0, 0
    while 0 in scheduler.places.requests:
        arrivals += 1
        scheduler.add(add_request(arrivals, prompt=2, max_tokens=1, priority=0))
        overtaken += sum(new.request != 0 for new in run_step(scheduler).new)
        assert overtaken <= MAX_OVERTAKES
    assert overtaken == MAX_OVERTAKES


def test_a_long_queue_of_the_overtaken_does_not_overtake_the_others() -> None:
    scheduler = build_scheduler(seqs=1, policy="priority")
    for number in range(40):
        scheduler.add(add_request(number, prompt=2, max_tokens=1, priority=9))
    low = []
    for step in range(3 * MAX_OVERTAKES + 100):
        scheduler.add(add_request(1000 + step, prompt=2, max_tokens=1, priority=0))
        low += [step for new in run_step(scheduler).new if new.request < 40]
    assert len(low) == 3
    assert all(later - earlier >= MAX_OVERTAKES for earlier, later in pairwise(low))


def test_nobody_waits_for_a_prefix_that_a_worse_priority_computes() -> None:
    scheduler = build_scheduler(seqs=4, budget=4, policy="priority")
    scheduler.add(add_request(1, range(30), priority=5))
    run_step(scheduler)
    scheduler.add(add_request(2, range(30), priority=0))
    assert entered(run_step(scheduler)) == [(2, 4)]


def test_nobody_is_displaced_for_those_behind_many_that_wait_for_a_prefix() -> None:
    scheduler = build_scheduler(seqs=4, budget=8, blocks=100, policy="priority")
    for number in range(3):
        scheduler.add(add_request(number, prompt=2, max_tokens=30, priority=9))
    run_step(scheduler)
    scheduler.add(add_request(10, range(30), priority=0))
    run_step(scheduler)
    for number in range(11, 21):
        scheduler.add(add_request(number, range(30), priority=0))
    scheduler.add(add_request(30, prompt=2, priority=1))
    run_step(scheduler)
    assert running(scheduler) == [10, 0, 1, 2]
    assert scheduler.stats().preemptions == 0


def test_one_that_runs_does_not_starve_for_its_share_of_the_budget() -> None:
    scheduler = build_scheduler(seqs=2, budget=4, policy="priority")
    scheduler.add(add_request(0, prompt=8, priority=9, max_tokens=1))
    run_step(scheduler)
    overtaken = 0
    while 0 in scheduler.places.requests:
        overtaken += 1
        scheduler.add(add_request(overtaken, prompt=4, max_tokens=1, priority=0))
        run_step(scheduler)
        assert overtaken < MAX_OVERTAKES + 5
    assert overtaken >= MAX_OVERTAKES


def test_under_fcfs_priorities_count_for_nothing() -> None:
    scheduler = build_scheduler(seqs=1)
    scheduler.add(add_request(1, max_tokens=3, priority=5))
    run_step(scheduler)
    scheduler.add(add_request(2, max_tokens=1, priority=4))
    scheduler.add(add_request(3, max_tokens=1, priority=-4))
    assert entered(*run_to_end(scheduler)) == [(2, 0), (3, 0)]
    assert scheduler.stats().preemptions == 0
