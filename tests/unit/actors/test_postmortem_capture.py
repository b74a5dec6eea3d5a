"""What is kept of a process that died: its mailboxes, its status, its last words."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ringpost.actors.body import LINE_LIMIT
from ringpost.actors.boot import Boot
from ringpost.actors.config import engine_config
from ringpost.actors.postmortem_capture import capture
from ringpost.actors.postmortem_file import MailboxPart, Postmortem, read_postmortem
from ringpost.actors.status import StatusBlock
from ringpost.actors.topology import Topology
from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.board import BoardWriter
from ringpost.ipc.layout import W_CAPACITY
from ringpost.ipc.messages.config import MIN_MAILBOX
from ringpost.ipc.messages.control import FromActor, Hello
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.plans import NewRow, PlanMessage, Reset, StepPlan
from ringpost.ipc.messages.requests import Abort, AddRequest, RequestMessage
from ringpost.ipc.messages.results import ResultMessage, StepResult
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.ipc.messages.status import ActorStatus
from ringpost.ipc.ring import RingHandle
from ringpost.ipc.segment import map_segment

FAILURE = Failure("worker0.0", 4711, "MemoryError", "no room", "Traceback:\nMemoryError: no room")
PROMPT = [31337, 31338, 31339]
pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def topology() -> Iterator[Topology]:
    topology = Topology(engine_config(mailbox_bytes=MIN_MAILBOX))
    yield topology
    topology.close()


@pytest.fixture
def core(topology: Topology) -> Boot:
    return topology.boots()[0]


@pytest.fixture
def worker(topology: Topology) -> Boot:
    return topology.boots()[1]


def plan(step: int) -> StepPlan:
    new = [NewRow(0, 7, PROMPT, 2, [step], SamplingParams(logit_bias={31340: 1.0}))]
    return StepPlan(step, new, [0], [step], [1], [[]], [0])


@pytest.fixture
def busy_worker(worker: Boot) -> Iterator[Boot]:
    """A worker that has taken two of three plans, answered one, and said Hello."""
    assert worker.plans is not None
    board = BoardWriter(worker.status, ActorStatus)
    status = StatusBlock(board.post, actor=worker.actor, kind=worker.kind, supervisor=1, epoch=1)
    ends: list[Any] = [
        attach_sender(worker.plans.duplicate(), PlanMessage),
        attach_receiver(worker.plans.duplicate(), PlanMessage),
        attach_sender(worker.results[0].duplicate(), ResultMessage),
        attach_sender(worker.from_actor.duplicate(), FromActor),
    ]
    plans, taken, results, control = ends
    control.send_nowait(Hello(worker.actor, 4711, 1))
    plans.send_nowait(Reset(1))
    taken.receive_nowait()
    for step in range(3):
        plans.send_nowait(plan(step))
    status.taking("StepPlan 0")
    for _ in range(2):
        taken.receive_nowait()
    results.send_nowait(StepResult(0, PROMPT))
    yield worker
    for end in (*ends, board):
        end.close()


def taken_from(boot: Boot, *, prompts: bool = False, tail: list[str] | None = None) -> Postmortem:
    return capture(boot, FAILURE, tail or []).postmortem(prompts=prompts)


def mailbox(postmortem: Postmortem, name: str) -> MailboxPart:
    (found,) = [mailbox for mailbox in postmortem.mailboxes if mailbox.name == name]
    return found


def test_what_a_process_was_and_said(busy_worker: Boot) -> None:
    postmortem = taken_from(replace(busy_worker, epoch=3), tail=["one", "\ud800" + "x" * 5000])
    assert (postmortem.actor, postmortem.kind, postmortem.pid, postmortem.epoch) == ("worker0.0", "worker", 4711, 3)
    assert postmortem.failure == {"kind": "MemoryError", "message": "no room", "traceback": FAILURE.traceback}
    assert postmortem.tail == ["one", "?" + "x" * (LINE_LIMIT - 1)]
    assert postmortem.status is not None
    assert (postmortem.status["state"], postmortem.status["message"]) == ("starting", "StepPlan 0")
    assert postmortem.status["since"] < postmortem.clock < time.monotonic()


def test_the_mailboxes_of_a_worker(busy_worker: Boot) -> None:
    postmortem = taken_from(busy_worker)
    assert [(mailbox.name, mailbox.direction) for mailbox in postmortem.mailboxes] == [
        ("to[worker0.0]", "in"),
        ("to[worker0.0].urgent", "in"),
        ("plans[0]", "in"),
        ("from[worker0.0]", "out"),
        ("results[0,0]", "out"),
    ]
    plans = mailbox(postmortem, "plans[0]")
    assert (plans.capacity, plans.unread, plans.writer.messages) == (MIN_MAILBOX, 1, 4)
    assert [(message.type, message.unread) for message in plans.messages] == [
        ("Reset", False),
        ("StepPlan", False),
        ("StepPlan", False),
        ("StepPlan", True),
    ]
    assert [message.sequence for message in plans.messages] == [0, 1, 2, 3]
    assert plans.messages[3].fields["step"] == 2
    results = mailbox(postmortem, "results[0,0]")
    assert (results.unread, results.messages[0].type, results.messages[0].unread) == (1, "StepResult", True)
    assert mailbox(postmortem, "from[worker0.0]").messages[0].fields == {"actor": "worker0.0", "pid": 4711, "epoch": 1}


def test_the_mailboxes_of_a_core(core: Boot) -> None:
    sender = attach_sender(core.requests[0].ordered.duplicate(), RequestMessage)
    urgent = attach_sender(core.requests[0].urgent.duplicate(), RequestMessage)
    sender.send_nowait(AddRequest(7, "mine", PROMPT, SamplingParams(), 0.5, cache_salt="pepper"))
    urgent.send_nowait(Abort(7))
    postmortem = taken_from(core)
    assert {(mailbox.name, mailbox.direction) for mailbox in postmortem.mailboxes} == {
        *((name, "in") for name in ("to[core0]", "to[core0].urgent", "requests[0,0]", "requests[0,0].urgent", "results[0,0]")),
        *((name, "out") for name in ("from[core0]", "outputs[0,0]", "plans[0]")),
    }
    (request,) = mailbox(postmortem, "requests[0,0]").messages
    assert (request.fields["external_id"], request.fields["prompt"]) == ("mine", "<3 token ids>")
    assert [message.type for message in mailbox(postmortem, "requests[0,0].urgent").messages] == ["Abort"]
    assert postmortem.status is None
    sender.close()
    urgent.close()


@pytest.mark.parametrize("prompts", [False, True])
def test_what_was_said_is_in_the_file_only_if_asked_for(busy_worker: Boot, tmp_path: Path, prompts: bool) -> None:
    path = capture(busy_worker, FAILURE, []).write(tmp_path, prompts=prompts)
    assert path.parent == tmp_path
    text = path.read_text()
    for token in ("31337", "31340"):
        assert (token in text) is prompts
    assert read_postmortem(path).prompts is prompts


def test_what_happens_later_does_not_show(busy_worker: Boot) -> None:
    snapshot = capture(busy_worker, FAILURE, [])
    before = snapshot.postmortem(prompts=True)
    assert busy_worker.plans is not None
    busy_worker.plans.mark_gone(writer=True)
    successor = attach_sender(busy_worker.plans.duplicate(), PlanMessage, epoch=2)
    for step in range(1000):
        successor.send_nowait(Reset(step))
    assert snapshot.postmortem(prompts=True) == before
    assert mailbox(taken_from(busy_worker), "plans[0]").messages[-1].fields == {"epoch": 999}
    successor.close()


def test_only_the_last_messages_are_kept(worker: Boot) -> None:
    sender = attach_sender(worker.results[0].duplicate(), ResultMessage)
    for step in range(100):
        sender.send_nowait(StepResult(step, []))
    results = mailbox(taken_from(worker), "results[0,0]")
    assert [message.fields["step"] for message in results.messages] == list(range(80, 100))
    assert results.unread == 100
    sender.close()


def test_what_cannot_be_read_is_left_out(busy_worker: Boot) -> None:
    handle = busy_worker.results[0]
    assert isinstance(handle, RingHandle)
    with map_segment(handle.memory) as memory:
        memory[8 * W_CAPACITY : 8 * W_CAPACITY + 8] = bytes(8)
    with map_segment(busy_worker.status.memory) as memory:
        memory[:] = bytes(len(memory))
    postmortem = taken_from(busy_worker)
    assert "results[0,0]" not in {mailbox.name for mailbox in postmortem.mailboxes}
    assert mailbox(postmortem, "plans[0]").messages
    assert postmortem.status is None


def test_an_engine_in_one_process_has_no_mailboxes_to_look_into() -> None:
    topology = Topology(engine_config(single_process=True))
    for boot in topology.boots():
        postmortem = taken_from(boot)
        assert postmortem.mailboxes == []
        assert postmortem.failure["message"] == "no room"
    topology.close()


def test_every_mailbox_of_a_process_goes_in_or_out(topology: Topology) -> None:
    for boot in topology.boots():
        handles = [*(handle for handle, _ in boot.inbound()), *boot.outbound()]
        descriptors = [descriptor for handle in handles for descriptor in handle.descriptors()]
        assert sorted([boot.status.memory, *descriptors]) == sorted(boot.descriptors())
