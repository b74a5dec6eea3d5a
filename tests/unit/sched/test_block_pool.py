"""The pool of free blocks."""

from hypothesis import given
from hypothesis import strategies as st

from ringpost.sched.block_pool import BlockPool


def test_a_fresh_pool_hands_out_the_lowest_ids_first() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == [0, 1, 2]
    assert (pool.num_blocks, pool.num_free) == (4, 1)


def test_every_block_is_usable() -> None:
    pool = BlockPool(5)
    assert sorted(pool.allocate(5)) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0
    assert pool.allocate(0) == []


def test_the_block_freed_last_is_reused_first() -> None:
    pool = BlockPool(4)
    assert pool.allocate(4) == [0, 1, 2, 3]
    pool.free([2, 0])
    assert pool.allocate(2) == [0, 2]


@given(st.lists(st.integers(-6, 6), max_size=40))
def test_each_block_is_free_or_held_once(changes: list[int]) -> None:
    pool = BlockPool(10)
    held: list[int] = []
    for change in changes:
        if change > 0 and change <= pool.num_free:
            held += pool.allocate(change)
        elif change < 0:
            pool.free(held[:-change])
            del held[:-change]
        assert sorted([*held, *pool.free_blocks()]) == list(range(10))
        assert pool.num_free == 10 - len(held)
