"""Sessions: what a turn leaves, and what the next one begins with."""

import pytest
from schedulers import STOP, add_request, build_scheduler, complete, entered, plan_of, restart, run_step, run_to_end
from session_turns import ONE, OUT, TWO, context, free, talk, turn

from ringpost.ipc.messages.requests import AddRequest, CacheKey
from ringpost.ipc.messages.results import RowFailure, StepResult
from ringpost.sched.context import Context
from ringpost.sched.errors import DoesNotFit, DuplicateRequest, RequestTooLong, SessionMismatch
from ringpost.sched.integrity import check_integrity
from ringpost.sched.precedence import Precedence


def test_each_turn_computes_only_what_is_new() -> None:
    scheduler = build_scheduler(caching=False)
    assert talk(scheduler, turn(1, 6), turn(2, 3, base=7), turn(3, [9], base=12)) == [(1, 0), (2, 7), (3, 11)]
    one, two = add_request(1, 6).prompt, add_request(2, 3).prompt
    assert context(scheduler).token_ids == [*one, OUT, *two, OUT, OUT, 9, OUT, OUT]
    assert (context(scheduler).num_computed, len(context(scheduler).block_table), free(scheduler)) == (14, 4, 16)
    assert not scheduler.has_work
    assert scheduler.close_session(ONE) is None
    assert (free(scheduler), scheduler.open_sessions()) == (20, [])


def test_what_was_there_is_told_with_the_first_token() -> None:
    scheduler = build_scheduler()
    talk(scheduler, turn(1, 6))
    scheduler.add(turn(2, 3, base=7))
    assert complete(scheduler, plan_of(scheduler))[0].cached_tokens == 7
    assert scheduler.stats().prefix_queries == 6, "nothing was looked up"


def test_a_turn_without_input_computes_the_last_token_again() -> None:
    scheduler = build_scheduler()
    assert talk(scheduler, turn(1, 6), turn(2, [], base=5)) == [(1, 0), (2, 4)]


def test_the_last_token_may_stay() -> None:
    scheduler = build_scheduler()
    assert talk(scheduler, turn(1, 6), turn(2, 3, base=8)) == [(1, 0), (2, 7)]


def test_a_turn_may_end_at_once() -> None:
    scheduler = build_scheduler()
    scheduler.add(turn(1, 6, max_tokens=9))
    complete(scheduler, plan_of(scheduler), STOP)
    assert context(scheduler).num_computed == 6
    assert talk(scheduler, turn(2, 3, base=6)) == [(2, 6)]
    brought = turn(3, 3, base=9, output=[OUT, STOP], max_tokens=9)
    ended = scheduler.add(brought)
    check_integrity(scheduler)
    assert ended is not None
    assert (context(scheduler).token_ids[9:], context(scheduler).num_computed) == ([*brought.prompt, OUT, STOP], 9)
    assert not scheduler.has_work


def test_without_a_base_a_session_starts_over() -> None:
    scheduler = build_scheduler(caching=False)
    assert talk(scheduler, turn(1, 6), turn(2, 5)) == [(1, 0), (2, 0)]
    assert context(scheduler).token_ids == [*add_request(2, 5).prompt, OUT, OUT]
    assert free(scheduler) == 18


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_an_aborted_turn_leaves_what_has_results(steps_in_flight: int) -> None:
    scheduler = build_scheduler(steps_in_flight=steps_in_flight)
    scheduler.add(turn(1, 6, max_tokens=9))
    run_step(scheduler)
    plans = [plan_of(scheduler) for _ in range(steps_in_flight)]
    assert scheduler.abort(1)
    check_integrity(scheduler)
    assert context(scheduler).token_ids == [*add_request(1, 6).prompt, OUT]
    assert context(scheduler).num_computed == 6, "the steps in flight may fail"
    scheduler.add(turn(2, 3, base=7))
    if steps_in_flight == 1:
        complete(scheduler, plans.pop())
    else:
        complete(scheduler, plans.pop(0))
    plan = plan_of(scheduler)
    assert entered(plan) == [(2, 6)]
    for late in (*plans, plan):
        complete(scheduler, late)


def test_a_turn_aborted_before_it_ran_leaves_its_tokens() -> None:
    scheduler = build_scheduler()
    talk(scheduler, turn(1, 6))
    scheduler.add(turn(2, 3, base=7))
    assert scheduler.abort(2)
    check_integrity(scheduler)
    assert (len(context(scheduler).token_ids), context(scheduler).num_computed) == (10, 7)
    assert talk(scheduler, turn(3, 1, base=10)) == [(3, 7)]


def test_what_an_aborted_turn_computed_of_the_same_input_is_not_computed_again() -> None:
    """Though the context that the next one goes on from ends before it."""
    scheduler = build_scheduler(caching=False)
    talk(scheduler, turn(1, 6))
    chunk = add_request(2, 12).prompt
    for number, following, begins in (
        (2, [*chunk, 9], 7),
        (3, [*chunk, 8], 15),
        (4, [*chunk[:5], 7, *chunk[6:]], 12),
        (5, [6], 7),
    ):
        scheduler.add(turn(number, following, base=7))
        assert entered(run_step(scheduler)) == [(number, begins)]
        assert scheduler.abort(number)
        check_integrity(scheduler)


def test_same_tokens_with_another_image_are_computed_again() -> None:
    scheduler = build_scheduler(caching=False)
    talk(scheduler, turn(1, 6))
    for number, image, begins in ((2, "a", 7), (3, "a", 15), (4, "b", 7), (5, "b", 15)):
        scheduler.add(turn(number, [5] * 12, base=7, keys=[CacheKey(9, image)]))
        assert entered(run_step(scheduler)) == [(number, begins)]
        assert scheduler.abort(number)
        check_integrity(scheduler)


def test_an_error_while_a_turn_is_added_leaves_the_session_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    scheduler = build_scheduler()
    talk(scheduler, turn(1, 6))
    scheduler.add(add_request(8, 4))
    with monkeypatch.context() as patch:
        patch.setattr(Precedence, "set_turn", fail)
        with pytest.raises(MemoryError):
            scheduler.add(turn(2, 3, base=7, deaths=1))
    check_integrity(scheduler)
    assert not scheduler.abort(2)
    assert talk(scheduler, turn(3, 3, base=7))[-1] == (3, 7)
    assert scheduler.close_session(ONE) is None
    assert free(scheduler) == 20


def test_what_a_failed_turn_computed_is_not_trusted() -> None:
    scheduler = build_scheduler()
    talk(scheduler, turn(1, 6))
    scheduler.add(turn(2, 3, base=7))
    plan = plan_of(scheduler)
    update = scheduler.update(StepResult(plan.step, [OUT], [RowFailure(0, "ValueError", "nan")]))
    check_integrity(scheduler)
    assert [delta.finish_reason for delta in update.deltas] == ["error"]
    assert (len(context(scheduler).token_ids), free(scheduler)) == (10, 20)
    assert scheduler.stats().sessions_evicted == 1
    assert talk(scheduler, turn(3, 1, base=10)) == [(3, 0)], "nor is it found"


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        (turn(2, 40, base=7), RequestTooLong, "prompt has 47 tokens"),
        (turn(2, 20, base=7, max_tokens=None), DoesNotFit, "prompt of 27 tokens"),
        (turn(2, []), ValueError, "at least one token"),
        (turn(9, 2), DuplicateRequest, "9"),
        (turn(2, 2, base=9), SessionMismatch, "turn 2 of session 71 follows 9 tokens, but 8 are known of the session"),
        (turn(2, 2, base=1, session=TWO), SessionMismatch, "turn 2 of session 72 follows 1 tokens, but 0 are known"),
        (turn(2, 2, siblings=2), SessionMismatch, "turn 2 of session 71 has 2 siblings, a turn has none"),
    ],
)
def test_a_turn_that_is_refused_changes_nothing(request_: AddRequest, error: type[Exception], says: str) -> None:
    scheduler = build_scheduler(blocks=8)
    talk(scheduler, turn(1, 6))
    scheduler.add(add_request(9, 4))
    before = [str(getattr(context(scheduler), name)) for name in Context.__slots__]
    stats = scheduler.stats()
    with pytest.raises(error, match=says):
        scheduler.add(request_)
    check_integrity(scheduler)
    assert [str(getattr(context(scheduler), name)) for name in Context.__slots__] == before
    assert (scheduler.stats(), scheduler.open_sessions()) == (stats, [ONE])


def test_turns_follow_one_another() -> None:
    scheduler = build_scheduler()
    scheduler.add(turn(1, 6))
    with pytest.raises(SessionMismatch, match="turn 2 of session 71 was added while turn 1 is unfinished"):
        scheduler.add(turn(2, 6))
    assert entered(*run_to_end(scheduler)) == [(1, 0)]


def test_a_session_that_is_closed_takes_its_turn_along() -> None:
    scheduler = build_scheduler()
    scheduler.add(turn(1, 6))
    plan = plan_of(scheduler)
    assert scheduler.close_session(ONE) == 1
    check_integrity(scheduler)
    assert free(scheduler) == 20
    assert complete(scheduler, plan) == []
    assert scheduler.close_session(ONE) is None


def test_a_preempted_or_parked_turn_goes_on_as_any_other() -> None:
    scheduler = build_scheduler(caching=False)
    talk(scheduler, turn(1, 6))
    scheduler.add(turn(2, 3, base=7, max_tokens=5))
    run_step(scheduler)
    assert scheduler.park(2)
    check_integrity(scheduler)
    assert scheduler.unpark(2)
    plan = run_step(scheduler)
    assert entered(plan) == [(2, 10)]
    scheduler.reset_prefix_cache(preempt_running=True)
    check_integrity(scheduler)
    assert entered(*run_to_end(scheduler)) == [(2, 0)]
    assert len(context(scheduler).token_ids) == 15


def test_nothing_is_left_of_kv_when_the_workers_were_replaced() -> None:
    scheduler = build_scheduler(seqs=1)
    talk(scheduler, turn(1, 6))
    talk(scheduler, turn(2, 6, session=TWO))
    scheduler.add(turn(3, 3, base=7, session=TWO, max_tokens=3))  # runs
    run_step(scheduler)
    plan_of(scheduler)
    scheduler.add(turn(4, 3, base=7))  # waits
    restart(scheduler)
    assert free(scheduler) == 20
    assert entered(*run_to_end(scheduler)) == [(3, 0), (4, 0)]
    assert [len(context(scheduler, one).token_ids) for one in (ONE, TWO)] == [12, 13]
    restart(scheduler)
    assert (scheduler.stats().sessions, scheduler.stats().sessions_evicted, free(scheduler)) == (2, 2, 20)
    assert talk(scheduler, turn(5, 1, base=10)) == [(5, 0)]


def test_all_may_be_aborted_and_go_on() -> None:
    scheduler = build_scheduler()
    scheduler.add(turn(1, 6, max_tokens=9))
    run_step(scheduler)
    assert [delta.finish_reason for delta in scheduler.abort_all()] == ["abort"]
    check_integrity(scheduler)
    assert talk(scheduler, turn(2, 3, base=7)) == [(2, 6)]


def test_a_reset_leaves_sessions_what_they_have_and_lets_nobody_find_it() -> None:
    scheduler = build_scheduler()
    talk(scheduler, turn(1, 9))
    scheduler.reset_prefix_cache()
    check_integrity(scheduler)
    assert talk(scheduler, turn(2, 9, base=9)) == [(2, 9)]
    tokens = context(scheduler).token_ids
    assert talk(scheduler, turn(3, [3], base=12)) == [(3, 12)]
    assert talk(scheduler, turn(4, tokens[:17], session=TWO)) == [(4, 0)]
    scheduler.reset_prefix_cache(preempt_running=True)
    check_integrity(scheduler)
    assert (free(scheduler), scheduler.stats().sessions_evicted) == (20, 2)


def test_another_salt_is_another_context() -> None:
    scheduler = build_scheduler()
    assert talk(scheduler, turn(1, 9), turn(2, 1, base=9, salt="other"), turn(3, 1, base=10, salt="other")) == [
        (1, 0),
        (2, 0),
        (3, 10),
    ]


def test_what_kv_depends_on_besides_tokens_must_agree_as_far_as_it_goes() -> None:
    scheduler = build_scheduler()
    one, two, three = CacheKey(1, "adapter"), CacheKey(13, "image"), CacheKey(1, "other adapter")
    assert talk(scheduler, turn(1, 9, keys=[one]), turn(2, 6, base=9, keys=[one, two])) == [(1, 0), (2, 9)]
    assert talk(scheduler, turn(3, 1, base=9, keys=[three])) == [(3, 0)]
