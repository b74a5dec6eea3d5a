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
