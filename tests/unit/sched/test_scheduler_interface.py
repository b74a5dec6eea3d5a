"""A scheduler of one's own, by its import path."""

import sys
from types import ModuleType

import pytest

from ringpost.ipc.messages.config import SchedulerConfig
from ringpost.sched.interface import SchedulerInterface, scheduler_class
from ringpost.sched.scheduler import Scheduler

MEMBERS = (
    "abort",
    "abort_all",
    "add",
    "alone",
    "close_session",
    "fork_session",
    "has_work",
    "open_sessions",
    "park",
    "reset_prefix_cache",
    "restart",
    "schedule",
    "stats",
    "truncate_session",
    "unpark",
    "update",
)


class Patient(Scheduler):
    """One that does as the usual one."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that can be imported as `own_schedulers`."""
    own = ModuleType("own_schedulers")
    monkeypatch.setitem(sys.modules, "own_schedulers", own)
    return own


def test_the_default_is_the_usual_scheduler() -> None:
    assert scheduler_class(SchedulerConfig().scheduler_cls) is Scheduler


def test_a_class_is_found_by_its_path(module: ModuleType) -> None:
    module.__dict__["Patient"] = Patient
    assert scheduler_class("own_schedulers.Patient") is Patient


def test_the_usual_scheduler_has_all_that_is_asked_for() -> None:
    asked = sorted(name for name in vars(SchedulerInterface) if not name.startswith("_"))
    assert asked == list(MEMBERS)
    assert all(hasattr(Scheduler, name) for name in asked)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("Scheduler", r"must be an import path like 'package.module.Class', got 'Scheduler'"),
        ("", r"must be an import path like 'package.module.Class', got ''"),
        ("no_such_package.Scheduler", r"'no_such_package.Scheduler' cannot be imported: No module named 'no_such_package'"),
        ("ringpost.sched.scheduler.Missing", r"'ringpost.sched.scheduler.Missing' cannot be imported: .*'Missing'"),
        (".scheduler.Scheduler", r"must be an import path like 'package.module.Class', got '.scheduler.Scheduler'"),
        ("ringpost.sched.scheduler:Scheduler", r"must be an import path like 'package.module.Class', got 'ringpost.sched.sch"),
        ("ringpost.sched.precedence.MAX_OVERTAKES", r"'ringpost.sched.precedence.MAX_OVERTAKES' is no scheduler"),
        ("ringpost.sched.request.Request", r"'ringpost.sched.request.Request' is no scheduler: a class with the methods of"),
    ],
)
def test_a_wrong_path_is_named(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"scheduler_cls {message}"):
        scheduler_class(path)


def test_an_instance_is_no_class(module: ModuleType) -> None:
    module.__dict__["scheduler"] = Patient.__new__(Patient)
    with pytest.raises(ValueError, match="is no scheduler"):
        scheduler_class("own_schedulers.scheduler")


@pytest.mark.parametrize("missing", MEMBERS)
def test_a_class_that_lacks_something_is_refused(module: ModuleType, missing: str) -> None:
    members = {name: getattr(Scheduler, name) for name in MEMBERS if name != missing}
    module.__dict__["Lacking"] = type("Lacking", (), members)
    with pytest.raises(ValueError, match=rf"'own_schedulers.Lacking' is no scheduler: .* it lacks {missing}$"):
        scheduler_class("own_schedulers.Lacking")
