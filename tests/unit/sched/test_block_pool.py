"""The pool of blocks: those in use, those that are free, and what these still hold."""

from hypothesis import given
from hypothesis import strategies as st

from ringpost.sched.block_pool import BlockPool, Key

ROOT = ("",)


def key(*tokens: int) -> Key:
    return ROOT, tokens, ()


def pool_with(*blocks: int, size: int = 5) -> BlockPool:
    """A pool whose blocks are all in use, and these have content: each its own number as token."""
    pool = BlockPool(size)
    assert pool.allocate(size) == list(range(size))
    for block in blocks:
        pool.offer(block, key(block), ready=True)
    return pool


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


def test_blocks_without_content_are_reused_before_those_with() -> None:
    pool = pool_with(0, 1)
    pool.free([0, 1, 2, 3])
    assert pool.num_free == 4
    assert pool.allocate(3) == [3, 2, 0]
    assert pool.find(key(0)) is None
    assert pool.find(key(1)) is not None


def test_content_is_lost_in_the_order_in_which_it_was_freed() -> None:
    pool = pool_with(0, 1, 2, 3, 4)
    pool.free([3, 1, 4])
    assert pool.allocate(2) == [3, 1]
    assert [block for block in range(5) if pool.find(key(block))] == [0, 2, 4]


def test_what_is_used_again_is_freed_anew() -> None:
    pool = pool_with(0, 1, size=2)
    pool.free([0, 1])
    pool.share(0)
    pool.free([0])
    assert pool.allocate(2) == [1, 0]


def test_a_shared_block_is_free_when_all_have_freed_it() -> None:
    pool = pool_with(0, size=1)
    pool.share(0)
    assert pool.references(0) == 2
    pool.free([0])
    assert (pool.references(0), pool.num_free) == (1, 0)
    pool.free([0])
    assert (pool.references(0), pool.num_free, pool.free_blocks()) == (0, 1, (0,))


def test_of_equal_contents_the_first_is_found() -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    first = pool.offer(0, key(7), ready=False)
    assert pool.offer(1, key(7), ready=True) is first
    assert (first.block, first.ready) == (0, False)
    pool.free([1])
    assert pool.blank_blocks() == (1,)


def test_forgotten_content_is_not_found_and_its_number_not_used_again() -> None:
    pool = pool_with(0, 1)
    old = pool.find(key(0))
    pool.forget(0)
    pool.forget(2)
    assert pool.find(key(0)) is None
    new = pool.offer(0, key(0), ready=True)
    assert old is not None
    assert new.number not in {old.number, 1}


def test_forgetting_a_free_block_makes_it_one_without_content() -> None:
    pool = pool_with(0, 1)
    pool.free([0, 1])
    pool.forget(1)
    assert (pool.blank_blocks(), pool.num_free, pool.allocate(1)) == ((1,), 2, [1])


def test_all_can_be_forgotten() -> None:
    pool = pool_with(0, 1, 2)
    pool.free([0, 4])
    pool.forget_all()
    assert (pool.entries(), pool.num_free, sorted(pool.blank_blocks())) == ((), 2, [0, 4])
    pool.free([1])
    assert sorted(pool.blank_blocks()) == [0, 1, 4]


@given(st.lists(st.tuples(st.sampled_from("afsof"), st.integers(0, 9)), max_size=60))
def test_each_block_is_free_or_has_references(changes: list[tuple[str, int]]) -> None:
    pool = BlockPool(10)
    held: list[int] = []
    for change, number in changes:
        match change:
            case "a" if pool.num_free:
                held += pool.allocate(1)
            case "f" if held:
                pool.free([held.pop(number % len(held))])
            case "s" if (found := pool.find(key(number))) is not None:
                pool.share(found.block)
                held.append(found.block)
            case "o" if held and not any(entry.block == held[-1] for entry in pool.entries()):
                pool.offer(held[-1], key(number), ready=True)
        assert sorted({*held, *pool.free_blocks()}) == list(range(10))
        assert pool.num_free == 10 - len(set(held)) == len(pool.free_blocks())
        assert [pool.references(block) for block in range(10)] == [held.count(block) for block in range(10)]
        assert all(pool.find(entry.key) is entry for entry in pool.entries())
