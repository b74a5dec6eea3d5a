"""Reservations and block tables."""

import pytest

from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.sched.kv_cache_manager import KVCacheManager
from ringpost.sched.request import Request


def request(number: int, prompt: int, max_tokens: int) -> Request:
    params = SamplingParams(max_tokens=max_tokens)
    return Request(AddRequest(number, str(number), [5] * prompt, params, 0.0), max_model_len=100)


@pytest.mark.parametrize(("positions", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_rounds_up(positions: int, blocks: int) -> None:
    assert KVCacheManager(10, 4).blocks_for(positions) == blocks


def test_the_last_token_needs_no_slot() -> None:
    manager = KVCacheManager(10, 4)
    exact = request(1, prompt=5, max_tokens=4)  # nine tokens, of which eight are computed
    assert manager.reserve(exact)
    assert exact.num_reserved_blocks == 2


def test_a_reservation_is_made_in_full_or_not_at_all() -> None:
    manager = KVCacheManager(5, 4)
    first, second, third = (request(number, prompt=5, max_tokens=8) for number in range(3))  # three blocks each
    assert manager.reserve(first)
    assert not manager.reserve(second)
    assert (manager.num_reserved, second.num_reserved_blocks) == (3, 0)
    manager.free(first)
    assert manager.reserve(third)


def test_blocks_are_allocated_as_positions_need_them() -> None:
    manager = KVCacheManager(5, 4)
    one = request(1, prompt=5, max_tokens=8)
    assert manager.reserve(one)
    assert manager.pool.num_free == 5
    assert manager.allocate(one, 5) == [0, 1]
    assert manager.allocate(one, 8) == []
    assert manager.allocate(one, 9) == [2]
    assert (one.block_table, one.num_slots) == ([0, 1, 2], 12)


def test_new_ids_stay_the_callers_own() -> None:
    manager = KVCacheManager(5, 4)
    one = request(1, prompt=5, max_tokens=8)
    assert manager.reserve(one)
    new = manager.allocate(one, 5)
    manager.allocate(one, 9)
    assert new == [0, 1]


def test_free_takes_back_blocks_and_reservation() -> None:
    manager = KVCacheManager(5, 4)
    one = request(1, prompt=5, max_tokens=8)
    assert manager.reserve(one)
    manager.allocate(one, 9)
    manager.free(one)
    assert (manager.pool.num_free, manager.num_reserved) == (5, 0)
    assert (one.block_table, one.num_slots, one.num_reserved_blocks) == ([], 0, 0)


def test_what_is_missing_is_what_others_have_to_give_up() -> None:
    manager = KVCacheManager(5, 4)
    first, second = (request(number, prompt=5, max_tokens=8) for number in range(2))
    assert manager.missing(first) == -2
    assert manager.reserve(first)
    assert manager.missing(second) == 1
