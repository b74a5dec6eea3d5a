"""The queue that is sorted by rank."""

from hypothesis import given
from hypothesis import strategies as st
from schedulers import add_request

from ringpost.sched.ranked_queue import RankedQueue
from ringpost.sched.request import Request


def request(number: int, priority: int = 0) -> Request:
    return Request(add_request(number, priority=priority), max_model_len=100, block_size=4, number=number)


def test_lower_priorities_come_first_and_then_earlier_arrivals() -> None:
    queue = RankedQueue()
    last, first, second, third = request(1, 2), request(2, -1), request(3), request(4)
    for item in (third, last, second, first):
        queue.push(item)
    assert (len(queue), list(queue), queue.snapshot()) == (4, [first, second, third, last], [first, second, third, last])
    assert list(reversed(queue)) == [last, third, second, first]
    assert (queue.first(), queue.last(), queue.oldest()) == (first, last, last)


def test_a_snapshot_stays_as_it_is() -> None:
    queue = RankedQueue()
    one, two = request(1), request(2)
    queue.push(one)
    queue.push(two)
    before = queue.snapshot()
    queue.remove(one)
    assert (before, list(queue), queue.first(), queue.oldest()) == ([one, two], [two], two, two)
    queue.remove(two)
    assert not queue


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=30))
def test_it_is_always_sorted(changes: list[tuple[int, bool]]) -> None:
    queue, inside = RankedQueue(), list[Request]()
    for number, (priority, remove) in enumerate(changes):
        if remove and inside:
            queue.remove(inside.pop(priority % len(inside)))
        else:
            inside.append(request(number, priority))
            queue.push(inside[-1])
        assert list(queue) == sorted(inside, key=lambda item: item.rank)
        assert not inside or queue.oldest() is min(inside, key=lambda item: item.rank[1])
