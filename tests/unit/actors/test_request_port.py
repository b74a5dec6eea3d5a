"""A frontend's requests: the two copies of an Abort, and what a restarted core passes over."""

from collections.abc import Iterator

import msgspec
import pytest
from mailboxes import lane_ends, make_lanes

from ringpost.actors.engine_core.request_port import RequestPort
from ringpost.ipc.lanes import LaneReceiver, Lanes, LaneSender
from ringpost.ipc.messages.requests import Abort, AddRequest, CloseSession, RequestMessage, Resume, Sibling
from ringpost.ipc.messages.sampling import SamplingParams

Ends = tuple[LaneSender[RequestMessage], LaneReceiver[RequestMessage]]


@pytest.fixture
def lanes(no_leaks: None) -> Iterator[Lanes]:
    made = make_lanes(RequestMessage)
    yield made
    made.close()


@pytest.fixture
def ends(lanes: Lanes) -> Iterator[Ends]:
    with lane_ends(lanes, RequestMessage) as both:
        yield both


def add(request: int) -> AddRequest:
    return AddRequest(request, "r", [1], SamplingParams(seed=0), 0.0)


def test_an_urgent_abort_overtakes_and_drops_the_add_behind_it(ends: Ends) -> None:
    sender, port = ends[0], RequestPort(ends[1])
    sender.ordered.send_nowait(add(1))
    sender.ordered.send_nowait(add(2))
    assert sender.send_urgent(Abort(2))
    assert list(port.messages()) == [Abort(2), add(1)]
    sender.ordered.send_nowait(Abort(2))
    sender.ordered.send_nowait(add(2))  # the number is free again
    assert list(port.messages()) == [Abort(2), add(2)]


def test_a_copy_that_is_found_late_leaves_no_mark(ends: Ends) -> None:
    """The ordered copy may be seen before the urgent one, though that was sent first."""
    sender, port = ends[0], RequestPort(ends[1])
    sender.ordered.send_nowait(add(1))
    messages = port.messages()
    assert next(messages) == add(1)  # the urgent lane was looked at, and is empty
    assert sender.send_urgent(Abort(1))
    sender.ordered.send_nowait(Abort(1))
    assert list(messages) == [Abort(1), Abort(1)]
    sender.ordered.send_nowait(add(1))
    assert list(port.messages()) == [add(1)]


def test_a_restarted_core_passes_over_everything_before_its_own_resume(ends: Ends) -> None:
    sender, port = ends[0], RequestPort(ends[1], epoch=3)
    before: list[RequestMessage] = [add(1), Resume(2), CloseSession(1)]
    for message in before:
        sender.ordered.send_nowait(message)
    assert sender.send_urgent(Abort(7))
    sender.ordered.send_nowait(Abort(7))
    assert list(port.messages()) == []
    after: list[RequestMessage] = [Resume(3), add(1), add(7)]
    for message in after:
        sender.ordered.send_nowait(message)
    assert list(port.messages()) == after


def test_it_ends_when_the_frontend_closed_it_and_nothing_is_left(ends: Ends) -> None:
    sender, port = ends[0], RequestPort(ends[1])
    sender.ordered.send_nowait(add(1))
    sender.close()
    assert list(port.messages()) == [add(1)]
    assert port.ended


def test_it_ends_when_the_frontend_died_and_nothing_is_left(lanes: Lanes, ends: Ends) -> None:
    sender, port = ends[0], RequestPort(ends[1])
    sender.ordered.send_nowait(add(1))
    lanes.mark_gone(writer=True)
    assert list(port.messages()) == [add(1)]
    assert port.ended


@pytest.mark.parametrize(
    ("aborted", "left"),
    [([2], (1, [3])), ([1], (2, [3])), ([1, 2], (3, [])), ([2, 3], (1, [])), ([1, 2, 3], None), ([4], (1, [2, 3]))],
)
def test_siblings_that_are_aborted_are_taken_out_and_the_others_stay(
    ends: Ends, aborted: list[int], left: tuple[int, list[int]] | None
) -> None:
    sender, port = ends[0], RequestPort(ends[1])
    sender.ordered.send_nowait(msgspec.structs.replace(add(1), output=[5], siblings=(Sibling(2, 20), Sibling(3, 30))))
    for request in aborted:
        assert sender.send_urgent(Abort(request))
    adds = [message for message in port.messages() if isinstance(message, AddRequest)]
    assert [(one.request, [sibling.request for sibling in one.siblings]) for one in adds] == ([] if left is None else [left])
    for one in adds:
        assert (one.params.seed, one.output) == {1: (0, [5]), 2: (20, []), 3: (30, [])}[one.request]
