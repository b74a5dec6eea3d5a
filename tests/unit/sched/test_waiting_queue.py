"""The queue of waiting requests."""

from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.sched.queues import WaitingQueue
from ringpost.sched.request import Request


def request(number: int) -> Request:
    return Request(AddRequest(number, str(number), [5], SamplingParams(), 0.0), max_model_len=100)


def test_first_come_first_served() -> None:
    queue = WaitingQueue()
    one, two, three = request(1), request(2), request(3)
    for item in (three, one, two):
        queue.push(item)
    assert (len(queue), list(queue)) == (3, [three, one, two])
    assert queue.peek() is three
    queue.remove(one)
    queue.remove(three)
    assert queue.peek() is two
    queue.remove(two)
    assert not queue


def test_those_that_ran_before_come_first() -> None:
    queue = WaitingQueue()
    new, first, second = request(1), request(2), request(3)
    queue.push(new)
    queue.push_returning(first)
    queue.push_returning(second)
    assert (len(queue), list(queue), list(queue.last_returning_first())) == (3, [first, second, new], [second, first])
    queue.remove(first)
    assert queue.peek() is second
    queue.remove(second)
    assert queue.peek() is new
