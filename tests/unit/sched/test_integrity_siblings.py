"""check_integrity finds damage to siblings, and to blocks that several hold."""

from collections.abc import Callable

import pytest
from schedulers import add_request, build_scheduler, plan_of, run_step

from ringpost.sched.held_prompt import HeldPrompt
from ringpost.sched.integrity import IntegrityError, check_integrity
from ringpost.sched.request import Request, RequestState
from ringpost.sched.scheduler import Scheduler


def build() -> Scheduler:
    """Request 1 runs in blocks 0 and 1, which are held for 2 and 3 too; 5 runs, and 6 follows it."""
    scheduler = build_scheduler(seqs=2, budget=7)
    scheduler.add(add_request(1, 6, siblings=2))
    scheduler.add(add_request(5, 6, siblings=1))
    run_step(scheduler)
    plan_of(scheduler)
    assert request(scheduler, 1).block_table == held_prompt(scheduler).block_table == [0, 1]
    assert request(scheduler, 6).state is RequestState.FOLLOWING
    return scheduler


def request(scheduler: Scheduler, number: int) -> Request:
    return scheduler.places.requests[number]


def follow_nobody(scheduler: Scheduler) -> None:
    scheduler.places.siblings.groups.clear()


def follow_one_that_has_ended(scheduler: Scheduler) -> None:
    scheduler.places.siblings.groups[9] = scheduler.places.siblings.groups.pop(5)


def follow_one_that_has_output(scheduler: Scheduler) -> None:
    scheduler.places.siblings.groups[1] = scheduler.places.siblings.groups.pop(5)


def follow_another_prompt(scheduler: Scheduler) -> None:
    request(scheduler, 6).prompt = [1] * 6


def follow_a_younger_one(scheduler: Scheduler) -> None:
    request(scheduler, 6).rank = (0, 0)


def follow_with_blocks(scheduler: Scheduler) -> None:
    pool = scheduler.places.kv_cache_manager.pool
    request(scheduler, 6).block_table = pool.allocate(1)
    request(scheduler, 6).num_slots = 4


def held_prompt(scheduler: Scheduler) -> HeldPrompt:
    [held] = scheduler.places.siblings.held
    return held


def forget_to_copy(scheduler: Scheduler) -> None:
    held = held_prompt(scheduler)
    request(scheduler, 2).block_table, held.block_table = held.block_table, []
    request(scheduler, 2).num_slots = 8
    del scheduler.places.siblings.held[held]
    scheduler.places.kept[2] = request(scheduler, 2)


def hold_for_too_many(scheduler: Scheduler) -> None:
    held_prompt(scheduler).members += 1


def hold_for_nobody(scheduler: Scheduler) -> None:
    for number in (1, 2, 3):
        request(scheduler, number).held = None


def hold_nothing(scheduler: Scheduler) -> None:
    held = held_prompt(scheduler)
    scheduler.places.kv_cache_manager.pool.free(held.block_table)
    held.block_table = []


def hold_another_prompt(scheduler: Scheduler) -> None:
    held_prompt(scheduler).num_computed -= 1


def keep_what_nobody_knows_of(scheduler: Scheduler) -> None:
    request(scheduler, 2).block_table = scheduler.places.kv_cache_manager.pool.allocate(1)


def test_a_sound_scheduler_passes() -> None:
    check_integrity(build())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (follow_nobody, r"registered: \[1, 2, 3, 5, 6\], queued: \[1, 2, 3, 5\]"),
        (follow_one_that_has_ended, "siblings follow request 9, which computes no prompt"),
        (follow_one_that_has_output, "siblings follow request 1, which computes no prompt"),
        (follow_another_prompt, "request 6, which follows request 5, has another prompt"),
        (follow_a_younger_one, "request 6, which follows request 5, is older"),
        (follow_with_blocks, "request 6, which follows request 5, holds 1 blocks and 0 tokens of output"),
        (forget_to_copy, r"request \d will write to blocks \[1\], which others hold"),
        (hold_for_too_many, r"the prompt held for requests \[1, 2, 3\] is said to be for 4"),
        (hold_for_nobody, r"the prompt held for requests \[\] is said to be for 3"),
        (hold_nothing, r"the prompt held for requests \[1, 2, 3\] has blocks \[\]"),
        (hold_another_prompt, r"the prompt held .* has 4 positions, all but one of the prompt, not so of \[1, 2, 3\]"),
        (keep_what_nobody_knows_of, r"requests \[2\] wait with blocks, known are \[\]"),
    ],
)
def test_damage_is_found(damage: Callable[[Scheduler], None], message: str) -> None:
    scheduler = build()
    damage(scheduler)
    with pytest.raises(IntegrityError, match=message):
        check_integrity(scheduler)
