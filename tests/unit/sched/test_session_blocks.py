"""The blocks of sessions: cut, shared by forks, copied before somebody writes, and given up for others."""

from collections.abc import Callable, Iterator

import pytest
from schedulers import add_request, build_scheduler, complete, entered, plan_of, run_step, run_to_end
from session_turns import ONE, OUT, THREE, TWO, context, free, talk, turn

from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.results import StepResult
from ringpost.sched.errors import SessionMismatch
from ringpost.sched.integrity import IntegrityError, check_integrity
from ringpost.sched.request import NOT_NOW
from ringpost.sched.scheduler import Scheduler


def fork(scheduler: Scheduler, length: int, session: int = ONE, child: int = TWO) -> None:
    scheduler.fork_session(session, child, length)
    check_integrity(scheduler)


def truncate(scheduler: Scheduler, length: int, session: int = ONE) -> None:
    scheduler.truncate_session(session, length)
    check_integrity(scheduler)


def copies(*plans: StepPlan) -> list[tuple[int, int]]:
    return [pair for plan in plans for pair in plan.copies]


def keys(scheduler: Scheduler, session: int = ONE) -> tuple[int, int]:
    """Blocks offered, and where the next one to be offered ends."""
    return context(scheduler, session).num_keyed, context(scheduler, session).next_full


def test_what_is_cut_off_is_free() -> None:
    scheduler = build_scheduler()
    talk(scheduler, turn(1, 13))
    assert (free(scheduler), keys(scheduler)) == (16, (3, 16))
    truncate(scheduler, 20)
    truncate(scheduler, 6)
    assert (context(scheduler).token_ids, context(scheduler).num_computed) == (add_request(1, 6).prompt, 6)
    assert (free(scheduler), keys(scheduler)) == (18, (1, 8))
    truncate(scheduler, 0)
    assert (free(scheduler), scheduler.stats().sessions, scheduler.stats().sessions_evicted) == (20, 1, 0)
    scheduler.truncate_session(TWO, 0)
    assert scheduler.open_sessions() == [ONE]


def test_a_session_that_has_a_turn_is_not_cut() -> None:
    scheduler = build_scheduler()
    talk(scheduler, turn(1, 6))
    scheduler.add(turn(2, 3, base=7))
    truncate(scheduler, 2)
    run_to_end(scheduler)
    assert len(context(scheduler).token_ids) == 12


def test_what_is_offered_after_a_cut_is_found_where_it_belongs() -> None:
    """A block offered behind the wrong one would be found by whoever has these tokens at another place."""
    scheduler = build_scheduler(block_size=1)
    five = [5] * 5
    talk(scheduler, turn(1, five[:3], max_tokens=1))
    assert talk(scheduler, turn(2, [5, 6, 7], base=1, max_tokens=1)) == [(2, 2)]
    scheduler.add(add_request(3, [*five[:3], 6, 7, 8], max_tokens=1))
    scheduler.add(add_request(4, [5, 5, 6, 7, 8], max_tokens=1))
    assert entered(*run_to_end(scheduler)) == [(3, 3), (4, 4)]


def test_a_block_that_is_written_to_again_is_not_found_any_more() -> None:
    scheduler = build_scheduler()
    talk(scheduler, turn(1, 8))
    assert talk(scheduler, turn(2, [1, 2], base=6)) == [(2, 6)]
    scheduler.add(add_request(1, 9))
    plan = run_step(scheduler)
    assert entered(plan) == [(1, 4)], "of the first prompt there is one block left"
    run_to_end(scheduler)
    whole = [*add_request(1, 6).prompt, 1, 2]
    scheduler.add(add_request(4, [*whole, 3]))
    assert entered(run_step(scheduler)) == [(4, 8)]


def found(scheduler: Scheduler, number: int, prompt: list[int]) -> int:
    """So many tokens of a request of no session are there."""
    scheduler.add(add_request(number, prompt))
    [(_, start)] = entered(*run_to_end(scheduler))
    return start


def test_when_a_block_on_the_way_is_not_found_all_are_offered_again_by_the_next_turn() -> None:
    scheduler = build_scheduler()
    talk(scheduler, turn(1, 12))
    pool = scheduler.places.kv_cache_manager.pool
    pool.forget(context(scheduler).block_table[0])
    truncate(scheduler, 10)
    assert keys(scheduler) == (2, NOT_NOW)
    assert talk(scheduler, turn(2, 9, base=10)) == [(2, 10)]
    assert keys(scheduler) == (5, 24)
    assert found(scheduler, 3, context(scheduler).token_ids) == 20


def test_what_a_parked_turn_withdrew_is_offered_by_the_next() -> None:
    scheduler = build_scheduler()
    scheduler.add(turn(1, 13))
    run_step(scheduler)
    scheduler.park(1)
    scheduler.unpark(1)
    run_to_end(scheduler)
    assert keys(scheduler) == (3, NOT_NOW)
    scheduler.add(turn(2, 4, base=14))
    assert scheduler.abort(2)
    check_integrity(scheduler)
    assert talk(scheduler, turn(3, 4, base=14)) == [(3, 14)]
    assert keys(scheduler) == (4, 20)
    assert found(scheduler, 4, context(scheduler).token_ids) == 16


def test_what_is_computed_behind_a_reset_is_offered_once_nothing_before_it_is_left() -> None:
    scheduler = build_scheduler()
    talk(scheduler, turn(1, 9))
    scheduler.reset_prefix_cache()
    talk(scheduler, turn(2, 4, base=9), turn(3, 4, base=13))
    assert found(scheduler, 4, context(scheduler).token_ids) == 0
    talk(scheduler, turn(5, 9), turn(6, 4, base=9))
    assert found(scheduler, 7, context(scheduler).token_ids) == 12


def test_a_fork_shares_and_whoever_writes_first_copies() -> None:
    scheduler = build_scheduler()
    talk(scheduler, turn(1, 6))
    fork(scheduler, 6)
    assert context(scheduler, TWO).token_ids == add_request(1, 6).prompt
    assert (free(scheduler), context(scheduler, TWO).block_table) == (18, [0, 1])
    scheduler.add(turn(2, [8], base=6, session=TWO))
    plans = run_to_end(scheduler)
    assert (entered(*plans), copies(*plans)) == ([(2, 6)], [(1, 2)])
    scheduler.add(turn(3, [9], base=6))
    plans = run_to_end(scheduler)
    assert (entered(*plans), copies(*plans)) == ([(3, 6)], []), "nobody else has it now"
    assert context(scheduler, TWO).block_table == [0, 2]
    assert context(scheduler).block_table == [0, 1]
    for session in (ONE, TWO):
        scheduler.close_session(session)
    assert free(scheduler) == 20


def test_both_may_go_on_in_one_step() -> None:
    scheduler = build_scheduler()
    talk(scheduler, turn(1, 6))
    fork(scheduler, 6)
    scheduler.add(turn(2, [8], base=6, session=TWO))
    scheduler.add(turn(3, [9], base=6))
    plan = plan_of(scheduler)
    assert (entered(plan), plan.copies) == ([(2, 6), (3, 6)], [(1, 2)])


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_a_session_is_forked_in_the_midst_of_its_turn(steps_in_flight: int) -> None:
    scheduler = build_scheduler(steps_in_flight=steps_in_flight, caching=False)
    scheduler.add(turn(1, 6, max_tokens=9))
    run_step(scheduler)
    plans = [plan_of(scheduler) for _ in range(steps_in_flight)]
    fork(scheduler, 7)
    assert context(scheduler, TWO).token_ids == [*add_request(1, 6).prompt, OUT]
    assert context(scheduler, TWO).num_computed == 6, "the steps in flight may fail"
    fork(scheduler, 3, child=THREE)
    assert (context(scheduler, THREE).num_computed, context(scheduler, THREE).block_table) == (3, [0])
    complete(scheduler, plans.pop(0))
    scheduler.add(turn(2, [8], base=7, session=TWO))
    plan = plan_of(scheduler)
    [(copied, _)] = plan.copies
    assert (entered(plan), copied) == ([(2, 6)], 1)
    for late in (*plans, plan):
        complete(scheduler, late)
    run_to_end(scheduler)
    assert [context(scheduler, one).num_computed for one in (ONE, TWO, THREE)] == [14, 9, 3]
    assert free(scheduler) == 20 - 4 - 2, "all share the first block"


def test_a_session_is_forked_while_its_turn_waits() -> None:
    scheduler = build_scheduler(seqs=1)
    talk(scheduler, turn(1, 6))
    scheduler.add(add_request(9, 4))
    run_step(scheduler)
    scheduler.add(turn(2, 3, base=7))
    fork(scheduler, 9)
    assert (len(context(scheduler, TWO).token_ids), context(scheduler, TWO).num_computed) == (9, 7)
    plans = run_to_end(scheduler)
    assert (entered(*plans), len(copies(*plans))) == ([(2, 7)], 1)
    assert talk(scheduler, turn(3, 1, base=9, session=TWO)) == [(3, 7)]


def test_a_fork_that_cannot_be_changes_nothing() -> None:
    scheduler = build_scheduler()
    talk(scheduler, turn(1, 6), turn(2, 6, session=TWO))
    stats = scheduler.stats()
    for session, child, length, says in (
        (ONE, THREE, 9, "session 71 was forked as session 73 behind 9 tokens, but 8 are known of it"),
        (THREE, 74, 1, "session 73 was forked as session 74 behind 1 tokens, but 0 are known of it"),
        (ONE, TWO, 1, "session 71 was forked as session 72, which is open already"),
    ):
        with pytest.raises(SessionMismatch, match=says):
            scheduler.fork_session(session, child, length)
    check_integrity(scheduler)
    assert (scheduler.stats(), scheduler.open_sessions()) == (stats, [ONE, TWO])


def test_the_session_idle_longest_gives_its_blocks_up_first() -> None:
    scheduler = build_scheduler(blocks=8, max_model_len=33)
    talk(scheduler, turn(1, 6), turn(2, 6, session=TWO), turn(3, 6, session=THREE), turn(4, [1], base=6))
    scheduler.add(add_request(9, 12, max_tokens=9))
    run_to_end(scheduler)
    assert [len(context(scheduler, one).block_table) for one in (ONE, TWO, THREE)] == [2, 0, 0]
    assert (scheduler.stats().sessions, scheduler.stats().sessions_evicted) == (3, 2)
    assert scheduler.stats().preemptions == 0
    scheduler.reset_prefix_cache()
    assert talk(scheduler, turn(5, 1, base=7, session=TWO)) == [(5, 0)]
    assert len(context(scheduler, TWO).token_ids) == 10


def test_a_parked_request_keeps_its_blocks_longer_than_a_session() -> None:
    scheduler = build_scheduler(blocks=6, max_model_len=25)
    scheduler.add(add_request(8, 6))
    run_step(scheduler)
    scheduler.park(8)
    scheduler.add(turn(1, 6, max_tokens=1))
    run_step(scheduler)
    scheduler.add(add_request(9, 12, max_tokens=3))
    run_step(scheduler)
    assert (scheduler.places.requests[8].block_table != [], scheduler.stats().sessions_evicted) == (True, 1)


def test_running_requests_do_not_give_way_to_forks_that_share_all_they_have() -> None:
    scheduler = build_scheduler(blocks=4, max_model_len=17, caching=False)
    talk(scheduler, turn(1, 6))
    fork(scheduler, 7)
    scheduler.add(add_request(8, 3, max_tokens=6))
    scheduler.add(add_request(9, 3, max_tokens=6))
    run_to_end(scheduler)
    assert (scheduler.stats().preemptions, scheduler.stats().sessions_evicted) == (0, 2)


class Watched(list[int]):
    """Counts the elements that are looked at in order."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        return map(self.look, super().__iter__())

    def __reversed__(self) -> Iterator[int]:
        return map(self.look, super().__reversed__())

    def look(self, block: int) -> int:
        self.looks += 1
        return block


def test_forks_that_have_nothing_to_give_are_not_looked_through_for_each_block() -> None:
    scheduler = build_scheduler(seqs=9, budget=400, blocks=128, max_model_len=400)
    scheduler.add(turn(1, 380, max_tokens=19))
    run_step(scheduler)
    fork(scheduler, 380)
    blocks = context(scheduler, TWO).block_table = Watched(context(scheduler, TWO).block_table)
    for number in range(2, 10):
        scheduler.add(add_request(number, 4, max_tokens=17))
    while 1 in scheduler.places.requests:
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.update(StepResult(plan.step, [OUT] * len(plan.sample)))
    stats = scheduler.stats()
    assert stats.preemptions > 1, "blocks were short"
    assert stats.sessions_evicted == 0
    assert len(blocks) <= blocks.looks < 2 * len(blocks), "they were looked through, once"


def test_what_forks_share_can_be_taken_as_soon_as_the_turn_has_ended() -> None:
    scheduler = build_scheduler(blocks=6, max_model_len=24, caching=False)
    scheduler.add(turn(1, 12, max_tokens=9))
    run_step(scheduler)
    run_step(scheduler)
    fork(scheduler, 12)
    fork(scheduler, 12, child=THREE)
    scheduler.add(add_request(8, 4, max_tokens=17))
    while not scheduler.stats().preemptions:
        run_step(scheduler)
    assert scheduler.stats().sessions_evicted == 0, "they have nothing that would help"
    scheduler.close_session(ONE)
    run_to_end(scheduler)
    assert (scheduler.stats().preemptions, scheduler.stats().sessions_evicted) == (1, 2)


def test_one_that_finds_no_block_for_the_copy_computes_a_little_again() -> None:
    """There are no more than it needs, and the other session holds them as well."""
    scheduler = build_scheduler(blocks=2, max_model_len=9, caching=False)
    talk(scheduler, turn(1, 6))
    fork(scheduler, 6)
    assert talk(scheduler, turn(2, [8], base=6, session=TWO)) == [(2, 4)]
    assert scheduler.stats().sessions_evicted == 1


def test_a_suspect_takes_the_blocks_of_idle_sessions() -> None:
    scheduler = build_scheduler(blocks=4, max_model_len=17)
    talk(scheduler, turn(1, 8))
    scheduler.add(turn(2, 10, session=TWO, max_tokens=4, deaths=2))
    assert entered(run_step(scheduler)) == [(2, 0)]
    assert scheduler.stats().sessions_evicted == 1


def lose_a_session(scheduler: Scheduler) -> None:
    del scheduler.places.sessions.contexts[ONE]


def mix_sessions_up(scheduler: Scheduler) -> None:
    scheduler.places.sessions.contexts[75] = scheduler.places.sessions.contexts.pop(TWO)


def lose_a_turn(scheduler: Scheduler) -> None:
    context(scheduler, ONE).turn = None


def close_and_forget_the_turn(scheduler: Scheduler) -> None:
    del scheduler.places.sessions.contexts[THREE]


def keep_tokens_beside_a_turn(scheduler: Scheduler) -> None:
    context(scheduler, ONE).token_ids = [1]


def lose_a_token(scheduler: Scheduler) -> None:
    del context(scheduler, TWO).token_ids[6:]


def count_a_position_too_little(scheduler: Scheduler) -> None:
    context(scheduler, TWO).num_computed = 4


def offer_too_much(scheduler: Scheduler) -> None:
    context(scheduler, TWO).num_keyed = 2


def offer_at_the_wrong_place(scheduler: Scheduler) -> None:
    context(scheduler, TWO).next_full += 1


def forget_who_is_idle(scheduler: Scheduler) -> None:
    scheduler.places.sessions.idle.clear()


def count_one_as_evicted(scheduler: Scheduler) -> None:
    scheduler.places.sessions.evicted.add(TWO)


def write_to_what_a_session_keeps(scheduler: Scheduler) -> None:
    one, two = scheduler.places.requests[3], context(scheduler, TWO)
    scheduler.places.kv_cache_manager.pool.free([one.block_table[1]])
    scheduler.places.kv_cache_manager.pool.share(two.block_table[0])
    one.block_table[1] = two.block_table[0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_a_session, r"turns \[3, 4\] are unfinished, of open sessions only \[4\]"),
        (mix_sessions_up, r"session 72 is known as 75"),
        (lose_a_turn, r"session 71 has turn None, which is not its unfinished one"),
        (close_and_forget_the_turn, r"turns \[3, 4\] are unfinished, of open sessions only \[3\]"),
        (keep_tokens_beside_a_turn, r"session 71 has a turn, and keeps 0 blocks and 1 tokens beside it"),
        (lose_a_token, r"session 72 has 2 blocks of 4 for 7 computed of 6 tokens"),
        (count_a_position_too_little, r"session 72 has 2 blocks of 4 for 4 computed of 8 tokens"),
        (offer_too_much, r"session 72 offers 2 of 1 full blocks"),
        (offer_at_the_wrong_place, r"session 72 offers 1 of 1 full blocks, the next up to 9"),
        (forget_who_is_idle, r"sessions \[72\] keep blocks, known are \[\]"),
        (count_one_as_evicted, r"sessions \[\] keep tokens alone, known are \[72\]"),
        (write_to_what_a_session_keeps, r"request 3 will write to blocks \[0\], which others hold"),
    ],
)
def test_damage_is_found(damage: Callable[[Scheduler], None], message: str) -> None:
    """Session 72 is idle; of 71 turn 3 runs, of 73 turn 4 waits."""
    scheduler = build_scheduler(seqs=1)
    talk(scheduler, turn(1, 6, session=TWO))
    scheduler.add(turn(3, 6))
    scheduler.add(turn(4, 6, session=THREE))
    plan_of(scheduler)
    damage(scheduler)
    with pytest.raises(IntegrityError, match=message):
        check_integrity(scheduler)
