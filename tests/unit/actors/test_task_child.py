"""An actor as a task: how its end is told, whenever it comes."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from ringpost.actors import task_child
from ringpost.actors.boot import Boot, Control, Main
from ringpost.actors.config import engine_config
from ringpost.actors.task_child import ActorTask
from ringpost.actors.topology import Topology
from ringpost.ipc.attach import attach_receiver
from ringpost.ipc.board import BoardReader
from ringpost.ipc.mailbox import Receiver
from ringpost.ipc.messages.control import FromActor, Hello
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.status import ActorStatus

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


@pytest.fixture
def boot() -> Iterator[Boot]:
    topology = Topology(engine_config(single_process=True))
    yield topology.boots()[0]
    topology.close()


def with_body(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of actor does this."""
    monkeypatch.setattr(task_child, "_main_of", lambda _: main)


async def wait_for_ever(boot: Boot, control: Control) -> None:
    await asyncio.Event().wait()


async def return_at_once(boot: Boot, control: Control) -> None:
    pass


async def fail(boot: Boot, control: Control) -> None:
    raise OSError("no weights")


def started(boot: Boot) -> tuple[ActorTask, asyncio.Event]:
    """The task, and an event that its end sets."""
    task, ended = ActorTask(boot), asyncio.Event()
    assert (task.pid, task.exitcode) == (None, None)
    task.start()
    task.watch(ended.set)
    assert (task.pid, task.exitcode, task.reap(None)) == (os.getpid(), None, False)
    return task, ended


async def test_an_end_in_good_order(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    with_body(return_at_once, monkeypatch)
    receiver: Receiver[FromActor] = attach_receiver(boot.from_actor, FromActor)
    task, ended = started(boot)
    await ended.wait()
    assert (task.exitcode, task.ending, task.reap(None)) == (0, "its task ended", True)
    assert receiver.receive_nowait() == Hello("core0", os.getpid(), 1)
    assert not receiver.ready()  # its line is not closed: as at the end of a process, the supervisor says that it has gone
    receiver.close()


async def test_a_failure_is_told_with_its_traceback_and_on_the_board(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    with_body(fail, monkeypatch)
    receiver: Receiver[FromActor] = attach_receiver(boot.from_actor, FromActor)
    task, ended = started(boot)
    await ended.wait()
    assert task.exitcode == 1
    assert isinstance(receiver.receive_nowait(), Hello)
    failure = receiver.receive_nowait()
    assert isinstance(failure, Failure)
    assert (failure.actor, failure.pid, failure.kind, failure.message) == ("core0", os.getpid(), "OSError", "no weights")
    assert "in fail" in failure.traceback
    board = BoardReader(boot.status, ActorStatus)
    status = board.read()
    assert status is not None
    assert status.state == "failed"
    board.close()
    receiver.close()


@pytest.mark.parametrize("begun", [False, True], ids=["before it begins", "while it waits"])
async def test_killed(boot: Boot, monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    with_body(wait_for_ever, monkeypatch)
    receiver: Receiver[FromActor] = attach_receiver(boot.from_actor, FromActor)
    task, ended = started(boot)
    if begun:
        await receiver.receive()
    task.kill()
    task.kill()
    await task.wait()
    await ended.wait()
    assert (task.exitcode, task.ending) == (-9, "its task was cancelled")
    assert not receiver.ready()
    receiver.close()


async def test_nobody_is_told_after_unwatch(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    with_body(return_at_once, monkeypatch)
    task, ended = started(boot)
    task.unwatch()
    await task.wait()
    await asyncio.sleep(0)
    assert task.exitcode == 0
    assert not ended.is_set()
