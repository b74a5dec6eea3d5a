"""What later requests find of what earlier ones have computed."""

from collections.abc import Sequence

import pytest
from schedulers import EOS, TOKEN, add_request, build_scheduler, complete, entered, plan_of, run_step, run_to_end
from slot_worker import SlotWorker

from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.requests import AddRequest, CacheKey
from ringpost.ipc.messages.results import RowFailure, StepResult
from ringpost.sched.integrity import check_integrity
from ringpost.sched.scheduler import Scheduler


def run_alone(scheduler: Scheduler, request: AddRequest) -> int:
    """Run a request to its end; returns where it started."""
    scheduler.add(request)
    [(number, start)] = entered(*run_to_end(scheduler))
    assert number == request.request
    return start


def found_by(scheduler: Scheduler, prompt: Sequence[int], number: int = 99) -> int:
    """How many tokens of a prompt another request would find now."""
    request = add_request(number, prompt, max_tokens=1)
    scheduler.add(request)
    manager = scheduler.places.kv_cache_manager
    match = manager.match(scheduler.places.requests[number])
    scheduler.abort(number)
    return len(match.found) * manager.block_size


@pytest.mark.parametrize(("length", "found"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_at_least_the_last_token_of_a_prompt_is_computed(length: int, found: int) -> None:
    scheduler = build_scheduler(budget=20)
    assert run_alone(scheduler, add_request(1, range(length), max_tokens=1)) == 0
    assert run_alone(scheduler, add_request(2, range(length), max_tokens=1)) == found


def test_what_was_found_is_said_once_with_the_first_token() -> None:
    scheduler = build_scheduler(budget=20)
    run_alone(scheduler, add_request(1, range(9), max_tokens=1))
    scheduler.add(add_request(2, range(10), max_tokens=3))
    deltas = [complete(scheduler, plan_of(scheduler))[0] for _ in range(3)]
    assert deltas == [
        TokenDelta(2, 0, [TOKEN], cached_tokens=8),
        TokenDelta(2, 1, [TOKEN]),
        TokenDelta(2, 2, [TOKEN], "length"),
    ]
    stats = scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (19, 8)


def test_a_first_token_that_is_the_last_says_it_too() -> None:
    scheduler = build_scheduler(budget=20)
    run_alone(scheduler, add_request(1, range(9), max_tokens=1))
    scheduler.add(add_request(2, range(10)))
    assert complete(scheduler, plan_of(scheduler), EOS) == [TokenDelta(2, 0, [EOS], "stop", cached_tokens=8)]


def test_an_answer_is_found_when_the_chat_goes_on() -> None:
    scheduler = build_scheduler(budget=20)
    run_alone(scheduler, add_request(1, range(5), max_tokens=8))
    assert run_alone(scheduler, add_request(2, [*range(5), *[TOKEN] * 7, 33], max_tokens=1)) == 12


def test_the_last_token_of_an_answer_was_never_computed() -> None:
    scheduler = build_scheduler(budget=20)
    run_alone(scheduler, add_request(1, range(5), max_tokens=7))
    assert run_alone(scheduler, add_request(2, [*range(5), *[TOKEN] * 7, 33], max_tokens=1)) == 8


def test_a_prefix_is_found_only_whole() -> None:
    scheduler = build_scheduler(budget=20)
    run_alone(scheduler, add_request(1, range(12), max_tokens=1))
    assert found_by(scheduler, [*range(8), 77, *range(9, 14)]) == 8
    assert found_by(scheduler, [77, *range(1, 14)]) == 0
    assert found_by(scheduler, range(4, 14)) == 0


def test_running_requests_share_their_blocks() -> None:
    scheduler = build_scheduler(budget=20)
    scheduler.add(add_request(1, range(9)))
    run_step(scheduler)
    scheduler.add(add_request(2, range(9)))
    plan = run_step(scheduler)
    assert plan.new[0].blocks == [0, 1, 3]
    assert scheduler.stats().free_blocks == 16
    assert scheduler.abort(1)
    check_integrity(scheduler)
    assert scheduler.stats().free_blocks == 17
    run_to_end(scheduler)


@pytest.mark.parametrize(
    ("salt", "keys"),
    [("other", []), ("", [CacheKey(0, "b")]), ("", []), ("", [CacheKey(0, "a"), CacheKey(1, "b")]), ("", [CacheKey(1, "a")])],
)
def test_only_equal_salts_and_keys_share(salt: str, keys: list[CacheKey]) -> None:
    scheduler = build_scheduler(budget=20)
    run_alone(scheduler, add_request(1, range(9), max_tokens=1, keys=[CacheKey(0, "a")]))
    assert run_alone(scheduler, add_request(2, range(9), max_tokens=1, salt=salt, keys=keys)) == 0
    assert run_alone(scheduler, add_request(3, range(9), max_tokens=1, salt=salt, keys=keys)) == 8
    assert run_alone(scheduler, add_request(4, range(9), max_tokens=1, keys=[CacheKey(0, "a")])) == 8


def test_what_comes_before_a_key_is_shared() -> None:
    scheduler = build_scheduler(budget=20)
    run_alone(scheduler, add_request(1, range(13), max_tokens=1, keys=[CacheKey(9, "image")]))
    assert run_alone(scheduler, add_request(2, range(13), max_tokens=1, keys=[CacheKey(9, "another")])) == 8
    assert run_alone(scheduler, add_request(3, range(13), max_tokens=1, keys=[CacheKey(10, "image")])) == 8
    assert run_alone(scheduler, add_request(4, range(13), max_tokens=1, keys=[CacheKey(9, "image")])) == 12


def test_the_end_of_what_was_used_longest_ago_is_lost_first() -> None:
    scheduler = build_scheduler(budget=40, blocks=8)
    one, two = range(100, 113), range(200, 213)
    run_alone(scheduler, add_request(1, one, max_tokens=1))
    run_alone(scheduler, add_request(2, two, max_tokens=1))
    assert (found_by(scheduler, one), found_by(scheduler, two)) == (12, 12)
    run_alone(scheduler, add_request(3, 9, max_tokens=1))  # two blocks without content, and one with
    assert (found_by(scheduler, one), found_by(scheduler, two)) == (8, 12)
    run_alone(scheduler, add_request(4, one, max_tokens=1))
    run_alone(scheduler, add_request(5, 21, max_tokens=1))
    assert (found_by(scheduler, one), found_by(scheduler, two)) == (8, 0)


def test_a_block_is_found_only_once_its_step_has_a_result() -> None:
    scheduler = build_scheduler(budget=8, steps_in_flight=2)
    scheduler.add(add_request(1, range(20)))
    first, second = plan_of(scheduler), plan_of(scheduler)
    assert found_by(scheduler, range(20)) == 0
    complete(scheduler, first)
    assert found_by(scheduler, range(20)) == 8
    complete(scheduler, second)
    assert found_by(scheduler, range(20)) == 16


def test_requests_whose_prefix_is_being_computed_are_put_off_and_then_find_it() -> None:
    scheduler = build_scheduler(budget=8)
    scheduler.add(add_request(1, range(17)))
    scheduler.add(add_request(2, range(20)))
    scheduler.add(add_request(3, [*range(4), *range(50, 60)]))  # most of it is its own
    scheduler.add(add_request(4, range(17)))
    assert entered(*(run_step(scheduler) for _ in range(2))) == [(1, 0)]
    assert entered(run_step(scheduler)) == [(2, 16), (3, 4)]
    assert entered(*(run_step(scheduler) for _ in range(3))) == [(4, 16)]


def test_who_puts_off_leaves_the_budget_to_others() -> None:
    scheduler = build_scheduler(budget=8, long_prefill=4)
    scheduler.add(add_request(1, range(17)))
    scheduler.add(add_request(2, range(20)))
    scheduler.add(add_request(3, 4))
    assert entered(run_step(scheduler)) == [(1, 0), (3, 0)]
    assert scheduler.stats().waiting == 1


@pytest.mark.parametrize("how", ["abort", "failure", "reset"])
def test_nobody_waits_for_what_is_not_computed_any_more(how: str) -> None:
    scheduler = build_scheduler(budget=8)
    scheduler.add(add_request(1, range(17)))
    scheduler.add(add_request(2, range(17)))
    plan = plan_of(scheduler)
    match how:
        case "abort":
            scheduler.abort(1)
            complete(scheduler, plan)
        case "failure":
            scheduler.update(StepResult(plan.step, [], [RowFailure(0, "ValueError", "nan")]))
        case "reset":
            scheduler.reset_prefix_cache()
            complete(scheduler, plan)
            assert scheduler.abort(1)
    check_integrity(scheduler)
    assert entered(run_step(scheduler)) == [(2, 0)]


def test_what_a_failed_row_computed_is_not_found() -> None:
    scheduler = build_scheduler(budget=8)
    scheduler.add(add_request(1, range(20)))
    run_step(scheduler)
    assert found_by(scheduler, range(20)) == 8
    scheduler.update(StepResult(plan_of(scheduler).step, [], [RowFailure(0, "ValueError", "nan")]))
    check_integrity(scheduler)
    assert (found_by(scheduler, range(20)), scheduler.stats().free_blocks) == (0, 20)


def test_others_keep_what_a_failed_row_shared_with_them() -> None:
    scheduler = build_scheduler(budget=20)
    requests = {number: add_request(number, range(9), max_tokens=4) for number in (1, 2)}
    worker = SlotWorker(4, 20, 4, requests)
    for request in requests.values():
        scheduler.add(request)
        scheduler.update(worker.execute(plan_of(scheduler)))
    plan = plan_of(scheduler)
    assert [failure.request for failure in scheduler.update(worker.execute(plan, failing=[0])).failures] == [1]
    check_integrity(scheduler)
    assert found_by(scheduler, range(9)) == 0
    while scheduler.has_work:
        assert scheduler.update(worker.execute(plan_of(scheduler))).failures == []
    assert scheduler.stats().free_blocks == 20


@pytest.mark.parametrize("preempt_running", [False, True])
def test_a_reset_forgets_what_was_computed(preempt_running: bool) -> None:
    scheduler = build_scheduler(budget=20)
    run_alone(scheduler, add_request(1, range(9), max_tokens=1))
    scheduler.add(add_request(2, range(12)))
    scheduler.add(add_request(3, range(12)))
    scheduler.add(add_request(4, 5))
    run_step(scheduler)
    scheduler.park(3)
    scheduler.reset_prefix_cache(preempt_running=preempt_running)
    check_integrity(scheduler)
    assert found_by(scheduler, range(12)) == 0
    scheduler.unpark(3)
    plan = run_step(scheduler)
    starts = sorted(zip(plan.rows, plan.starts, strict=True))
    # Those that have to compute the same again do so one after the other.
    assert starts == ([(0, 0), (1, 0)] if preempt_running else [(0, 12), (1, 12), (2, 5)])
    assert scheduler.stats().preemptions == 0, "nobody gave way to another one"


@pytest.mark.parametrize("length", [3, 12])
def test_a_reset_while_a_step_is_in_flight_forgets_that_step_too(length: int) -> None:
    """And a block that was begun before it, too."""
    scheduler = build_scheduler(budget=20)
    scheduler.add(add_request(1, range(length), max_tokens=8))
    plan = plan_of(scheduler)
    scheduler.reset_prefix_cache()
    complete(scheduler, plan)
    run_to_end(scheduler)
    assert found_by(scheduler, [*range(length), *[TOKEN] * 8]) == 0


def test_without_prefix_caching_nothing_is_found_or_put_off() -> None:
    scheduler = build_scheduler(budget=40, caching=False)
    for number in (1, 2):
        scheduler.add(add_request(number, range(9)))
    assert entered(run_step(scheduler)) == [(1, 0), (2, 0)]
    run_to_end(scheduler)
    assert run_alone(scheduler, add_request(3, range(9))) == 0
    assert (scheduler.stats().prefix_queries, scheduler.stats().prefix_hits) == (0, 0)
