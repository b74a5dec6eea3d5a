"""The boot record, the topology it comes from, and failures in words."""

import os

import msgspec
import pytest
from msgspec.structs import replace

from ringpost.actors.boot import Boot, describe_failure, encode_boot, first_cause
from ringpost.actors.config import engine_config
from ringpost.actors.errors import failure_text
from ringpost.actors.topology import Topology
from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.lanes import LaneSender
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.control import FromActor, Stop, ToActor
from ringpost.ipc.messages.plans import PlanMessage, StopWorker


def test_a_boot_record_crosses_processes(no_leaks: None) -> None:
    topology = Topology(engine_config(max_num_seqs=7))
    for boot in topology.boots():
        copy = msgspec.msgpack.decode(encode_boot(boot), type=Boot)
        assert copy == boot
        assert copy.config.scheduler.max_num_seqs == 7
        assert copy.supervisor == os.getpid()
    topology.close()


def test_every_mailbox_has_its_two_sides(no_leaks: None) -> None:
    topology = Topology(engine_config())
    core, worker = topology.boots()
    assert (core.kind, worker.kind, worker.rank) == ("engine_core", "worker", 0)
    assert [core.requests] == topology.requests
    assert [core.outputs] == topology.outputs
    assert core.plans == worker.plans
    assert core.results == worker.results
    assert core.to_actor != worker.to_actor
    assert core.plans is not None
    plans: Sender[PlanMessage] = attach_sender(core.plans.duplicate(), PlanMessage)
    received: Receiver[PlanMessage] = attach_receiver(core.plans.duplicate(), PlanMessage, worker.rank or 0)
    plans.send_nowait(StopWorker())
    assert received.receive_nowait() == StopWorker()
    for boot in (core, worker):
        to_actor: LaneSender[ToActor] = LaneSender(boot.to_actor.duplicate(), ToActor)
        from_actor: Receiver[FromActor] = attach_receiver(boot.from_actor.duplicate(), FromActor)
        to_actor.ordered.send_nowait(Stop())
        assert to_actor.send_urgent(Stop())
        to_actor.close()
        from_actor.close()
    plans.close()
    received.close()
    topology.close()


def test_every_frontend_has_its_own_rings_to_every_core(no_leaks: None) -> None:
    topology = Topology(engine_config(), num_frontends=3)
    core, _ = topology.boots()
    assert core.requests == [rings[0] for rings in topology.requests]
    assert core.outputs == [rings[0] for rings in topology.outputs]
    names = [handle.name for handle in [*(lanes.ordered for lanes in core.requests), *core.outputs]]
    assert names == [f"requests[{a},0]" for a in range(3)] + [f"outputs[0,{a}]" for a in range(3)]
    topology.close()


def test_a_child_inherits_what_it_has_an_end_of_and_nothing_else(no_leaks: None) -> None:
    topology = Topology(engine_config())
    core, worker = topology.boots()
    own = set(core.to_actor.descriptors()) | set(core.from_actor.descriptors())
    assert len(core.descriptors()) == len(set(core.descriptors()))
    assert not own & set(worker.descriptors())
    assert not set(topology.requests[0][0].descriptors()) & set(worker.descriptors())
    assert set(topology.requests[0][0].descriptors()) | own <= set(core.descriptors())
    assert not any(os.get_inheritable(fd) for fd in core.descriptors())
    topology.close()


def test_every_actor_has_a_board_of_its_own(no_leaks: None) -> None:
    topology = Topology(engine_config(), num_frontends=2)
    core, worker = topology.boots()
    boards = [core.status, worker.status, *topology.statuses]
    assert [board.name for board in boards] == [
        "status[core0]",
        "status[worker0.0]",
        "status[frontend0]",
        "status[frontend1]",
    ]
    assert [board.memory in core.descriptors() for board in boards] == [True, False, False, False]
    assert [board.memory in worker.descriptors() for board in boards] == [False, True, False, False]
    topology.close()


def test_who_reads_which_mailboxes(no_leaks: None) -> None:
    topology = Topology(engine_config(), num_frontends=2)
    core, worker = topology.boots()
    named = [[(handle.name, slot) for handle, slot in boot.inbound()] for boot in (core, worker)]
    lanes = ["to[core0]", "to[core0].urgent", "requests[0,0]", "requests[0,0].urgent", "requests[1,0]", "requests[1,0].urgent"]
    assert named == [
        [(name, 0) for name in (*lanes, "results[0,0]")],
        [("to[worker0.0]", 0), ("to[worker0.0].urgent", 0), ("plans[0]", 0)],
    ]
    assert replace(worker, rank=3).inbound()[-1] == (core.plans, 3)
    topology.close()


def test_a_failure_tells_who_and_why() -> None:
    try:
        raise OSError("no weights")
    except OSError as error:
        failure = describe_failure("worker0.0", error, request=3)
    assert (failure.actor, failure.pid, failure.kind, failure.message, failure.request) == (
        "worker0.0",
        os.getpid(),
        "OSError",
        "no weights",
        3,
    )
    assert failure.traceback.startswith("Traceback")
    assert failure.traceback.endswith("OSError: no weights\n")
    assert failure_text(failure) == f"worker0.0 (pid {os.getpid()}): OSError: no weights"


@pytest.mark.parametrize(
    "error", [KeyError("x"), ExceptionGroup("outer", [ExceptionGroup("inner", [KeyError("x"), OSError()])])]
)
def test_the_first_cause_of_a_group(error: Exception) -> None:
    assert repr(first_cause(error)) == "KeyError('x')"
