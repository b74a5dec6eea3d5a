"""check_integrity finds each kind of damage."""

from collections.abc import Callable

import pytest

from ringpost.ipc.messages.config import CacheConfig, SchedulerConfig
from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.sched.integrity import IntegrityError, check_integrity
from ringpost.sched.request import Request, RequestState
from ringpost.sched.scheduler import Scheduler


def build() -> Scheduler:
    """Requests 1 and 2 run, with a step in flight; request 3 waits, and request 4 is parked."""
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=20),
        CacheConfig(block_size=4),
        num_blocks=20,
        max_model_len=40,
    )
    for number in (1, 2, 3, 4):
        scheduler.add(AddRequest(number, f"r{number}", [5] * 6, SamplingParams(), 0.0))
    assert scheduler.park(4)
    assert scheduler.schedule() is not None
    return scheduler


def lose_a_block(scheduler: Scheduler) -> None:
    scheduler.requests[1].block_table.pop()


def share_a_block(scheduler: Scheduler) -> None:
    scheduler.requests[1].block_table[0] = scheduler.requests[2].block_table[0]


def free_a_block_twice(scheduler: Scheduler) -> None:
    scheduler.kv_cache_manager.pool.free([19])


def invent_a_block(scheduler: Scheduler) -> None:
    scheduler.requests[1].block_table.append(20)


def lose_a_row(scheduler: Scheduler) -> None:
    scheduler.requests[1].row = scheduler.requests[2].row


def miscount_reservations(scheduler: Scheduler) -> None:
    scheduler.kv_cache_manager.num_reserved -= 1


def reserve_while_waiting(scheduler: Scheduler) -> None:
    scheduler.requests[3].num_reserved_blocks = 1
    scheduler.kv_cache_manager.num_reserved += 1


def keep_blocks_for_nothing(scheduler: Scheduler) -> None:
    scheduler.park(2)
    scheduler.requests[2].num_computed = 0


def miscount_tokens_in_flight(scheduler: Scheduler) -> None:
    scheduler.requests[2].num_in_flight = 0


def park_under_a_wrong_number(scheduler: Scheduler) -> None:
    scheduler.parked[8] = scheduler.parked.pop(4)


def forget_a_parked_request(scheduler: Scheduler) -> None:
    scheduler.parked.clear()


def forget_a_request(scheduler: Scheduler) -> None:
    del scheduler.requests[3]


def drop_a_request_from_its_queue(scheduler: Scheduler) -> None:
    scheduler.waiting.remove(scheduler.requests[3])


def queue_a_request_twice(scheduler: Scheduler) -> None:
    scheduler.waiting.push(scheduler.requests[1])


def replace_a_request(scheduler: Scheduler) -> None:
    scheduler.requests[3] = Request(AddRequest(3, "r3", [5], SamplingParams(), 0.0), 40)


def run_under_a_wrong_number(scheduler: Scheduler) -> None:
    scheduler.running[7] = scheduler.running.pop(2)


def change_a_state(scheduler: Scheduler) -> None:
    scheduler.requests[3].state = RequestState.FINISHED


def compute_too_much(scheduler: Scheduler) -> None:
    scheduler.requests[1].num_computed = 8


def plan_too_much(scheduler: Scheduler) -> None:
    scheduler.requests[1].num_schedulable += 1


def miscount_slots(scheduler: Scheduler) -> None:
    scheduler.requests[1].num_slots += 1


def allocate_beyond_the_reservation(scheduler: Scheduler) -> None:
    scheduler.requests[1].num_reserved_blocks = 1
    scheduler.requests[2].num_reserved_blocks = 11


def lose_a_step(scheduler: Scheduler) -> None:
    scheduler.next_step += 1


def exceed_the_steps_in_flight(scheduler: Scheduler) -> None:
    scheduler.steps_in_flight = 0


def outgrow_the_budget(scheduler: Scheduler) -> None:
    scheduler.max_num_batched_tokens = 1


def test_a_sound_scheduler_passes() -> None:
    check_integrity(build())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_a_block, r"blocks missing.*\[1\]; 16 free, 3 held of 20"),
        (share_a_block, r"blocks missing.*\[0, 2\]"),
        (free_a_block_twice, r"blocks missing.*\[19\]; 17 free, 4 held of 20"),
        (invent_a_block, r"blocks missing.*\[20\]"),
        (lose_a_row, r"rows missing.*\[0, 1\]"),
        (miscount_reservations, "requests reserve 12 blocks, the manager counts 11 of 20"),
        (reserve_while_waiting, "request 3 is .*WAITING and reserves 1 blocks with 0 computed"),
        (keep_blocks_for_nothing, "request 2 has 2 blocks .* for 0 computed"),
        (miscount_tokens_in_flight, "request 2 counts 0 tokens in flight, the steps 1"),
        (park_under_a_wrong_number, "request 4 is parked as 8"),
        (forget_a_parked_request, r"registered: \[1, 2, 3, 4\], queued: \[1, 2, 3\]"),
        (forget_a_request, "request 3 is .*WAITING but not registered"),
        (drop_a_request_from_its_queue, r"registered: \[1, 2, 3, 4\], queued: \[1, 2, 4\]"),
        (queue_a_request_twice, "request 1 is .*RUNNING in the .*WAITING queue"),
        (replace_a_request, "request 3 is .*WAITING but not registered"),
        (run_under_a_wrong_number, "request 2 runs as 7"),
        (change_a_state, "request 3 is .*FINISHED in the .*WAITING queue"),
        (compute_too_much, "request 1 has computed 8 of 7 positions"),
        (plan_too_much, "request 1 has 6 tokens and 1 in flight.* but 8 schedulable"),
        (miscount_slots, "request 1 has 2 blocks of 4 and 9 slots"),
        (allocate_beyond_the_reservation, "1 blocks reserved"),
        (lose_a_step, r"steps \[0\] in flight, at most 1 allowed, the next is 2"),
        (exceed_the_steps_in_flight, r"steps \[0\] in flight, at most 0 allowed"),
        (outgrow_the_budget, "2 running requests need a token a step, the budget is 1"),
    ],
)
def test_damage_is_found(damage: Callable[[Scheduler], None], message: str) -> None:
    scheduler = build()
    damage(scheduler)
    with pytest.raises(IntegrityError, match=message):
        check_integrity(scheduler)
