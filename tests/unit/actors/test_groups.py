"""A core and its workers when members of theirs die, with processes that exist on paper only."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from ringpost.actors.boot import Boot
from ringpost.actors.config import engine_config
from ringpost.actors.errors import EngineStartError
from ringpost.actors.recovery import Group, Recovery
from ringpost.actors.topology import Topology
from ringpost.ipc.board import BoardWriter
from ringpost.ipc.messages.control import ActorReady, Reattach
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.status import ActorStatus

pytestmark = pytest.mark.usefixtures("no_leaks")


class PaperChild:
    """What a group needs of a Child."""

    def __init__(self, boot: Boot, opened: ExitStack) -> None:
        self.board = BoardWriter(boot.status, ActorStatus)
        opened.callback(self.board.close)
        self.told: list[Any] = []
        self.body = SimpleNamespace(reap=lambda timeout: None, exitcode=None, tail=())
        self._prepare(boot, 0.0)
        self.start()
        self.get_ready()

    def _prepare(self, boot: Boot, began: float) -> None:
        self.boot = boot
        self.actor = boot.actor
        self.began = began
        self.started = self.greeted = False
        self.ready: ActorReady | None = None
        self.failure: Failure | None = None
        self.reason = ""
        self.body.exitcode = None

    @property
    def running(self) -> bool:
        return self.started and self.body.exitcode is None

    def start(self) -> None:
        self.started = True

    def get_ready(self, steps: int = 0, alone: int | None = None) -> None:
        self.greeted = True
        self.ready = ActorReady(self.actor, 64, epoch=self.boot.epoch)
        self.board.post(ActorStatus(self.actor, self.boot.kind, 7, 1, self.boot.epoch, "ready", steps=steps, alone=alone))

    def die(self) -> None:
        self.body.exitcode = -9

    def condemn(self, reason: str, sentence: Failure | None = None) -> None:
        self.reason = self.reason or reason
        self.die()

    def succeed(self, boot: Boot) -> None:
        self._prepare(boot, 0.0)

    def tell(self, message: Reattach) -> bool:
        self.told.append((message.peer, message.epoch))
        return True

    def describe(self, kind: str, what: str) -> Failure:
        return Failure(self.actor, 7, kind, what)

    def take_messages(self) -> None:
        pass

    def describe_death(self) -> Failure:
        return self.failure or Failure(self.actor, 7, "ProcessDied", "killed by signal 9")

    def describe_lateness(self, limit: str) -> Failure:
        return Failure(self.actor, 7, "TimeoutError", f"not ready after {limit}")


class Engine:
    """A group of a core and a worker."""

    def __init__(self, opened: ExitStack, **options: Any) -> None:
        config = engine_config(**options)
        self.topology = Topology(config)
        opened.callback(self.topology.close)
        self.core, self.worker = (PaperChild(boot, opened) for boot in self.topology.boots())
        members: Any = [self.core, self.worker]
        self.group = Group(members, self.topology, config.runtime)
        opened.callback(self.group.close)

    def recover(self, now: float = 0.0) -> Recovery:
        """Look, and renew those that have ended."""
        lost = self.group.look(now)
        recovery = self.group.recover(lost, now)
        if recovery.delay is not None:
            self.group.renew(lost, recovery.failure)
        return recovery

    def start(self, now: float = 0.0) -> None:
        self.group.start(now)
        for child in (self.core, self.worker):
            if child.ready is None:
                child.get_ready()
        self.core.ready = ActorReady("core0", 64, epoch=self.group.epoch)


@pytest.fixture
def make() -> Iterator[Callable[..., Engine]]:
    with ExitStack() as opened:
        yield lambda **options: Engine(opened, **options)


Make = Callable[..., Engine]


def test_nothing_happens_while_all_work(make: Make) -> None:
    engine = make()
    assert engine.group.look(1e6) == []
    assert engine.group.deadline() is None
    assert engine.group.settle(5.0) == 0.0


def test_a_worker_that_died_is_replaced_and_the_core_told(make: Make) -> None:
    engine = make()
    engine.worker.die()
    recovery = engine.recover(3.0)
    assert [(death.actor, death.reason) for death in recovery.deaths] == [("worker0.0", "killed")]
    assert (recovery.epoch, recovery.core_died, recovery.worked, recovery.delay) == (2, False, True, 0.0)
    assert engine.core.told == [("worker0.0", 2)]
    assert (engine.worker.boot.epoch, engine.core.boot.epoch) == (2, 1)
    assert engine.worker.boot.config.cache.num_blocks_override == 64  # the core goes on with so many
    assert engine.group.down == (recovery.failure, 3.0)
    assert engine.group.deadline() == 3.0
    engine.start(3.0)
    assert engine.group.settle(5.5) == 2.5
    assert engine.group.settle(6.0) == 0.0
    assert engine.group.down is None


def test_a_core_that_died_is_replaced_and_its_workers_told(make: Make) -> None:
    engine = make()
    engine.core.die()
    recovery = engine.recover()
    assert (recovery.core_died, recovery.core_served) == (True, True)
    assert engine.worker.told == [("core0", 2)]
    assert (engine.worker.boot.epoch, engine.core.boot.epoch) == (1, 2)


def test_both_at_once_begin_the_same_epoch(make: Make) -> None:
    engine = make()
    engine.core.die()
    engine.worker.die()
    recovery = engine.recover()
    assert [death.actor for death in recovery.deaths] == ["core0", "worker0.0"]
    assert (engine.worker.boot.epoch, engine.core.boot.epoch) == (2, 2)
    assert engine.core.told == engine.worker.told == []


def test_a_worker_that_dies_before_the_new_core_is_ready_takes_it_along(make: Make) -> None:
    engine = make()
    engine.core.die()
    engine.recover()
    engine.group.start(0.0)
    engine.worker.die()
    recovery = engine.recover()
    assert [death.actor for death in recovery.deaths] == ["worker0.0"]
    assert (recovery.core_died, recovery.core_served, recovery.worked) == (True, False, False)
    assert (engine.worker.boot.epoch, engine.core.boot.epoch) == (3, 3)


def test_a_worker_that_dies_before_the_new_core_is_started_begins_the_same_epoch(make: Make) -> None:
    engine = make()
    engine.core.die()
    engine.recover()
    engine.worker.die()
    recovery = engine.recover()
    assert recovery.core_died
    assert (engine.worker.boot.epoch, engine.core.boot.epoch) == (3, 3)
    assert engine.core.told == []


def test_a_core_that_dies_while_the_worker_starts_has_it_go_on(make: Make) -> None:
    engine = make()
    engine.worker.die()
    engine.recover()
    engine.group.start(0.0)
    engine.core.die()
    assert engine.recover().core_died
    assert (engine.worker.boot.epoch, engine.core.boot.epoch) == (2, 3)
    assert engine.worker.told == [("core0", 3)]


def test_who_has_failed_is_ended_and_named(make: Make) -> None:
    engine = make()
    engine.core.failure = Failure("core0", 7, "KeyError", "no such row", "a traceback")
    recovery = engine.recover()
    assert recovery.deaths[0].reason == "failed"
    assert recovery.failure == Failure("core0", 7, "KeyError", "no such row", "a traceback")


def test_a_successor_that_is_late_is_ended(make: Make) -> None:
    engine = make(startup_timeout=9.0)
    engine.worker.die()
    engine.recover()
    engine.group.start(4.0)
    assert engine.group.deadline() == 13.0
    assert engine.group.look(12.9) == []
    recovery = engine.recover(13.0)
    assert [(death.actor, death.reason) for death in recovery.deaths] == [("worker0.0", "late")]
    assert recovery.delay == 1.0
    assert "(2 deaths in a row without a finished step)" in recovery.failure.message
    assert engine.group.deadline() == 14.0


def test_it_gives_up_after_three_deaths_without_a_finished_step(make: Make) -> None:
    engine = make()
    engine.worker.get_ready(steps=5)
    delays = []
    for _ in range(3):
        engine.worker.die()
        recovery = engine.recover()
        delays.append(recovery.delay)
        if recovery.delay is not None:
            engine.start()
    assert delays == [0.0, 1.0, None]
    assert engine.worker.boot.epoch == 3


def test_steps_of_a_predecessor_do_not_count_for_its_successor(make: Make) -> None:
    engine = make()
    for steps, delay in ((5, 0.0), (None, 1.0)):
        if steps is not None:
            engine.worker.get_ready(steps=steps)
        engine.worker.die()  # the second time before it has posted anything
        assert engine.recover().delay == delay
        engine.group.start(0.0)


def test_a_death_with_a_request_alone_in_flight_is_that_requests(make: Make) -> None:
    engine = make()
    for alone in (None, None, 9, None):
        engine.core.get_ready(alone=alone)
        engine.worker.die()
        recovery = engine.recover()
        assert recovery.alone == alone
        assert recovery.delay is not None
        engine.start()


def test_without_restarts_the_first_death_is_the_end_and_told_as_it_is(make: Make) -> None:
    engine = make(max_restarts=0)
    engine.worker.get_ready(steps=5)
    engine.worker.die()
    recovery = engine.recover()
    assert recovery.delay is None
    assert recovery.failure == Failure("worker0.0", 7, "ProcessDied", "killed by signal 9")


def test_a_survivor_that_cannot_be_told_is_ended_too(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    monkeypatch.setattr(engine.core, "tell", lambda _: False)
    engine.worker.die()
    engine.recover()
    assert engine.core.reason == "failed"
    assert engine.recover().core_died
    assert engine.core.boot.epoch == 3


def test_a_pending_restart_is_not_brought_forward_by_another_death(make: Make) -> None:
    engine = make()
    for _ in range(2):
        engine.core.die()
        engine.recover()
        engine.group.start(0.0)
    engine.core.die()
    engine.group.start_at = 8.0
    engine.worker.die()
    engine.recover(0.5)
    assert engine.group.start_at == 8.0


def test_what_a_dead_core_had_alone_is_not_blamed_for_what_dies_after_it(make: Make) -> None:
    engine = make()
    engine.core.get_ready(alone=9)
    engine.core.die()
    assert engine.recover().alone == 9
    engine.worker.die()
    assert engine.recover().alone is None


def test_a_hung_worker_is_found_when_its_new_core_waits_for_it(make: Make) -> None:
    engine = make(startup_timeout=3.0)
    engine.core.die()
    engine.recover()
    engine.group.start(0.0)
    engine.core.greeted = True
    recovery = engine.recover(3.0)
    assert {death.actor: death.reason for death in recovery.deaths} == {"core0": "late", "worker0.0": "late"}


def test_who_hangs_is_replaced_but_not_a_core_whose_workers_start(make: Make) -> None:
    engine = make()
    engine.worker.die()
    engine.recover()
    engine.group.start(0.0)
    for actor in ("core0", "worker0.0"):
        engine.group.replace_hung(actor, "holds StepPlan 3 for 9 s")
    assert engine.core.running
    assert engine.worker.running
    engine.worker.get_ready()
    engine.group.replace_hung("core0", "holds StepResult 3 for 9 s")
    assert engine.recover().deaths[0].reason == "hung"


def test_a_start_that_the_system_refuses_is_tried_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    engine.worker.get_ready(steps=5)
    engine.worker.die()
    engine.recover()

    def refuse() -> None:
        raise EngineStartError("worker0.0 cannot be started: no memory")

    monkeypatch.setattr(engine.worker, "start", refuse)
    engine.group.start(2.0)
    assert engine.group.start_at == 3.0
    with pytest.raises(EngineStartError, match="no memory"):
        engine.group.start(3.0)


def test_the_group_works_again_when_the_core_has_begun_the_epoch(make: Make) -> None:
    engine = make()
    engine.worker.die()
    engine.recover(1.0)
    engine.group.start(1.0)
    engine.worker.get_ready()
    assert engine.group.settle(2.0) == 0.0
    assert engine.group.down is not None
    engine.core.ready = ActorReady("core0", 64, epoch=2)
    assert engine.group.settle(4.0) == 3.0
