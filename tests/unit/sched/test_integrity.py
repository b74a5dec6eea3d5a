"""check_integrity finds each kind of damage."""

from collections.abc import Callable

import pytest
from schedulers import add_request, build_scheduler, plan_of, run_step

from ringpost.sched.block_pool import BlockPool
from ringpost.sched.integrity import IntegrityError, check_integrity
from ringpost.sched.request import Request, RequestState
from ringpost.sched.scheduler import Scheduler


def build() -> Scheduler:
    """Requests 1 and 2 run, with a step in flight; 3 waits, and 4 is parked. Block 0 is free, but has content.

    Blocks 1 and 2 are those of request 1, 3 and 4 those of request 2; of either, the first is offered, and not computed yet.
    """
    scheduler = build_scheduler(seqs=2, budget=20)
    scheduler.add(add_request(5, 6, max_tokens=1))
    run_step(scheduler)
    for number in (1, 2, 3, 4):
        scheduler.add(add_request(number, 6, max_tokens=None))
    assert scheduler.park(4)
    plan_of(scheduler)
    assert [request(scheduler, number).block_table for number in (1, 2)] == [[1, 2], [3, 4]]
    assert [entry.block for entry in pool(scheduler).entries()] == [0, 1, 3]
    return scheduler


def request(scheduler: Scheduler, number: int) -> Request:
    return scheduler.places.requests[number]


def pool(scheduler: Scheduler) -> BlockPool:
    return scheduler.places.kv_cache_manager.pool


def lose_a_block(scheduler: Scheduler) -> None:
    request(scheduler, 1).block_table.pop()


def share_a_block_uncounted(scheduler: Scheduler) -> None:
    request(scheduler, 1).block_table[0] = request(scheduler, 2).block_table[0]
    pool(scheduler).free([1])


def count_a_block_twice(scheduler: Scheduler) -> None:
    pool(scheduler).share(2)


def invent_a_block(scheduler: Scheduler) -> None:
    request(scheduler, 1).block_table.append(20)


def free_a_block_in_use(scheduler: Scheduler) -> None:
    pool(scheduler).free([4])


def give_a_block_two_contents(scheduler: Scheduler) -> None:
    pool(scheduler).entries()[1].block = 0


def change_a_key(scheduler: Scheduler) -> None:
    pool(scheduler).entries()[0].key = (7, (), ())


def find_too_early(scheduler: Scheduler) -> None:
    pool(scheduler).entries()[1].ready = True


def wait_for_nobody(scheduler: Scheduler) -> None:
    request(scheduler, 2).computing.clear()


def move_content(scheduler: Scheduler) -> None:
    pool(scheduler).entries()[0].block = 19


def lose_the_content_of_a_free_block(scheduler: Scheduler) -> None:
    pool(scheduler).entries()[0].block = 2


def lose_a_row(scheduler: Scheduler) -> None:
    request(scheduler, 1).row = request(scheduler, 2).row


def keep_blocks_for_nothing(scheduler: Scheduler) -> None:
    scheduler.park(2)
    request(scheduler, 2).num_computed = 9


def hold_more_than_can_be_used(scheduler: Scheduler) -> None:
    request(scheduler, 2).max_positions = 4
    request(scheduler, 2).num_schedulable = 4
    request(scheduler, 2).num_computed = 4


def miscount_tokens_in_flight(scheduler: Scheduler) -> None:
    request(scheduler, 2).num_in_flight = 0


def park_under_a_wrong_number(scheduler: Scheduler) -> None:
    scheduler.places.parked[8] = scheduler.places.parked.pop(4)


def forget_a_parked_request(scheduler: Scheduler) -> None:
    scheduler.places.parked.clear()


def forget_a_request(scheduler: Scheduler) -> None:
    del scheduler.places.requests[3]


def drop_a_request_from_its_queue(scheduler: Scheduler) -> None:
    scheduler.places.waiting.remove(request(scheduler, 3))


def queue_a_request_twice(scheduler: Scheduler) -> None:
    scheduler.places.waiting.push(request(scheduler, 1))


def replace_a_request(scheduler: Scheduler) -> None:
    scheduler.places.requests[3] = Request(add_request(3), max_model_len=40, block_size=4, number=9)


def change_a_rank(scheduler: Scheduler) -> None:
    request(scheduler, 1).rank = (5, 5)


def share_a_rank(scheduler: Scheduler) -> None:
    request(scheduler, 1).rank = request(scheduler, 2).rank


def change_a_state(scheduler: Scheduler) -> None:
    request(scheduler, 3).state = RequestState.FINISHED


def compute_too_much(scheduler: Scheduler) -> None:
    request(scheduler, 1).num_computed = 8


def plan_too_much(scheduler: Scheduler) -> None:
    request(scheduler, 1).num_schedulable += 1


def miscount_slots(scheduler: Scheduler) -> None:
    request(scheduler, 1).num_slots += 1


def run_without_room(scheduler: Scheduler) -> None:
    one = request(scheduler, 1)
    pool(scheduler).free([one.block_table.pop()])
    one.num_slots, one.num_computed = 4, 4


def offer_too_much(scheduler: Scheduler) -> None:
    request(scheduler, 1).num_keyed = 3


def lose_a_step(scheduler: Scheduler) -> None:
    scheduler.next_step += 1


def exceed_the_steps_in_flight(scheduler: Scheduler) -> None:
    scheduler.steps_in_flight = 0


def run_too_many(scheduler: Scheduler) -> None:
    scheduler.max_running = 1


def mark(scheduler: Scheduler, number: int, deaths: int, clear_at: int) -> None:
    request(scheduler, number).deaths = deaths
    request(scheduler, number).clear_at = clear_at
    scheduler.suspects.marked.append(request(scheduler, number))


def forget_a_death(scheduler: Scheduler) -> None:
    mark(scheduler, 3, 1, 6)
    scheduler.suspects.marked.clear()


def mark_without_a_death(scheduler: Scheduler) -> None:
    mark(scheduler, 3, 0, 0)


def mark_twice(scheduler: Scheduler) -> None:
    mark(scheduler, 3, 1, 6)
    mark(scheduler, 3, 1, 6)


def clear_at_once(scheduler: Scheduler) -> None:
    mark(scheduler, 3, 1, 0)


def clear_never(scheduler: Scheduler) -> None:
    mark(scheduler, 3, 1, 99)


def clear_without_a_death(scheduler: Scheduler) -> None:
    request(scheduler, 3).clear_at = 6


def be_alone_with_others(scheduler: Scheduler) -> None:
    scheduler.suspects.alone = request(scheduler, 1)


def suspect_one_of_several(scheduler: Scheduler) -> None:
    mark(scheduler, 2, 2, 6)


def test_a_sound_scheduler_passes() -> None:
    check_integrity(build())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_a_block, r"blocks missing.*\[2\]; 16 free, 3 held of 20"),
        (share_a_block_uncounted, r"whose references are not the requests that hold them: \[3\]"),
        (count_a_block_twice, r"whose references are not the requests that hold them: \[2\]"),
        (invent_a_block, r"blocks missing.*\[20\]"),
        (free_a_block_in_use, r"blocks missing.*\[4\]; 17 free, 4 held of 20"),
        (give_a_block_two_contents, r"blocks with two contents: \[0\]"),
        (change_a_key, "block 0 is not found under its key"),
        (find_too_early, "block 1 is ready, and .*True"),
        (wait_for_nobody, "block 3 is not ready, and .*False"),
        (move_content, r"among those without, or the other way round: \[0, 19\]"),
        (lose_the_content_of_a_free_block, r"among those without, or the other way round: \[0\]"),
        (lose_a_row, r"rows missing.*\[0, 1\]"),
        (keep_blocks_for_nothing, "request 2 has computed 9 of 7 positions"),
        (hold_more_than_can_be_used, "request 2 has 2 blocks .* for 4 computed tokens and 4 positions at most"),
        (miscount_tokens_in_flight, "request 2 counts 0 tokens in flight, the steps 1"),
        (park_under_a_wrong_number, "request 4 is parked as 8"),
        (forget_a_parked_request, r"registered: \[1, 2, 3, 4\], queued: \[1, 2, 3\]"),
        (forget_a_request, "request 3 is .*WAITING but not registered"),
        (drop_a_request_from_its_queue, r"registered: \[1, 2, 3, 4\], queued: \[1, 2, 4\]"),
        (queue_a_request_twice, "request 1 is .*RUNNING in the .*WAITING queue"),
        (replace_a_request, "request 3 is .*WAITING but not registered"),
        (change_a_rank, r"ranks out of order: \[\(5, 5\), \(0, 2\)\]"),
        (share_a_rank, r"ranks out of order: \[\(0, 2\), \(0, 2\)\]"),
        (change_a_state, "request 3 is .*FINISHED in the .*WAITING queue"),
        (compute_too_much, "request 1 has computed 8 of 7 positions"),
        (plan_too_much, "request 1 has 6 tokens and 1 in flight.* but 8 schedulable"),
        (miscount_slots, "request 1 has 2 blocks of 4 and 9 slots"),
        (run_without_room, "request 1 runs with 4 slots for 6 tokens known"),
        (offer_too_much, "request 1 offers 3 of 2 blocks"),
        (lose_a_step, r"steps \[1\] in flight, at most 1 allowed, the next is 3"),
        (exceed_the_steps_in_flight, r"steps \[1\] in flight, at most 0 allowed"),
        (run_too_many, "2 requests run, at most 1 may"),
        (forget_a_death, r"requests with deaths: \[3\], marked: \[\]"),
        (mark_without_a_death, r"requests with deaths: \[\], marked: \[3\]"),
        (mark_twice, r"requests with deaths: \[3\], marked: \[3, 3\]"),
        (clear_at_once, "request 3 with 1 deaths is cleared at position 0 of at most 39"),
        (clear_never, "request 3 with 1 deaths is cleared at position 99 of at most 39"),
        (clear_without_a_death, "request 3 with 0 deaths is cleared at position 6"),
        (be_alone_with_others, r"request 1 is said to be in flight alone, but steps hold \[\[1, 2\]\]"),
        (suspect_one_of_several, r"suspects \[2\] are in flight with others: \[\[1, 2\]\]"),
    ],
)
def test_damage_is_found(damage: Callable[[Scheduler], None], message: str) -> None:
    scheduler = build()
    damage(scheduler)
    with pytest.raises(IntegrityError, match=message):
        check_integrity(scheduler)
