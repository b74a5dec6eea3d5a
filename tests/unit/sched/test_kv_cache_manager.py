"""Block tables, and who may find which block. What requests see of it is in test_prefix_sharing.py."""

import pytest
from schedulers import add_request

from ringpost.ipc.messages.config import CacheConfig
from ringpost.sched.kv_cache_manager import KVCacheManager
from ringpost.sched.request import Request


def build(*, caching: bool = True) -> KVCacheManager:
    return KVCacheManager(8, CacheConfig(block_size=4, enable_prefix_caching=caching))


def request(number: int, length: int = 10) -> Request:
    """All have the same tokens."""
    return Request(add_request(number, range(length)), max_model_len=100, block_size=4, number=number)


def admitted(manager: KVCacheManager, number: int, length: int = 10) -> Request:
    new = request(number, length)
    manager.admit(new, manager.match(new))
    return new


@pytest.mark.parametrize(("positions", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_rounds_up(positions: int, blocks: int) -> None:
    assert build().blocks_for(positions) == blocks


def test_a_request_gets_the_blocks_of_all_its_tokens_when_it_is_admitted() -> None:
    one = admitted(build(), 1)
    assert (one.block_table, one.num_slots, one.num_computed) == ([0, 1, 2], 12, 0)


def test_a_table_is_extended_as_positions_need_it() -> None:
    manager = build()
    one = admitted(manager, 1)
    assert manager.extend(one, 12) == []
    new = manager.extend(one, 13)
    manager.extend(one, 17)
    assert new == [3], "new ids stay the caller's own"
    assert (one.block_table, one.num_slots) == ([0, 1, 2, 3, 4], 20)


def test_a_block_is_found_once_it_is_computed() -> None:
    manager = build()
    one, two = admitted(manager, 1), request(2)
    assert manager.match(two) == ([], 2, 3)
    assert manager.is_being_computed(two, manager.match(two))
    manager.computed(one, 7)
    assert [entry.block for entry in manager.match(two).found] == [0]
    assert manager.match(two)[1:] == (1, 2)
    manager.computed(one, 8)
    match = manager.match(two)
    assert ([entry.block for entry in match.found], match.num_computing, match.num_blocks) == ([0, 1], 0, 1)
    assert not manager.is_being_computed(two, match)
    manager.admit(two, match)
    assert (two.block_table, two.num_computed) == ([0, 1, 3], 8)
    assert (manager.num_shared(one), manager.num_shared(two)) == (2, 2)


def test_free_blocks_that_are_found_have_to_be_taken_from_the_free_ones() -> None:
    manager = build()
    one, two = admitted(manager, 1), request(2)
    manager.computed(one, 10)
    manager.free(one)
    match = manager.match(two)
    assert (len(match.found), match.num_blocks) == (2, 3)


def test_free_takes_back_all_blocks_and_keeps_their_content() -> None:
    manager = build()
    one = admitted(manager, 1)
    manager.computed(one, 10)
    manager.free(one)
    assert (manager.pool.num_free, one.block_table, one.num_slots, one.num_computed) == (8, [], 0, 0)
    assert len(manager.match(request(2)).found) == 2


@pytest.mark.parametrize("how", ["free", "forget", "withdraw", "reset"])
def test_what_is_not_computed_any_more_is_not_waited_for(how: str) -> None:
    manager = build()
    one = admitted(manager, 1)
    manager.computed(one, 4)
    match how:
        case "withdraw":
            manager.withdraw(one)
        case "reset":
            manager.reset([one])
        case _:
            manager.free(one, forget=how == "forget")
    found, num_computing, _ = manager.match(request(2))
    assert (len(found), num_computing) == (0 if how in {"forget", "reset"} else 1, 0)
    manager.computed(one, 10)
    assert len(manager.match(request(2)).found) == len(found), "a late result offers nothing"


def test_without_prefix_caching_nothing_is_found() -> None:
    manager = build(caching=False)
    one = admitted(manager, 1)
    manager.computed(one, 10)
    assert manager.match(request(2)) == ([], 0, 3)
    assert manager.pool.entries() == ()
