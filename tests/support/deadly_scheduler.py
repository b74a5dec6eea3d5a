"""Schedulers that are the end of their core, for the reason of one request or for none."""

import os

from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.results import StepResult
from ringpost.sched.outputs import StepUpdate
from ringpost.sched.scheduler import Scheduler

DEADLY_TOKEN = 200  # in its prompt
EXIT_CODE = 7


class DiesOfPlanning(Scheduler):
    """Whenever the request enters a step, there is an end."""

    def schedule(self) -> StepPlan | None:
        plan = super().schedule()
        if plan is not None and any(DEADLY_TOKEN in new.tokens[: new.prompt_length] for new in plan.new):
            os._exit(EXIT_CODE)
        return plan


class DiesOfResult(Scheduler):
    """Whenever the request is in a result, there is an end."""

    def update(self, result: StepResult) -> StepUpdate:
        if any(DEADLY_TOKEN in request.prompt for request in self.in_flight[0].requests):
            os._exit(EXIT_CODE)
        return super().update(result)


class RaisesAtResult(Scheduler):
    """Cannot take a result."""

    def update(self, result: StepResult) -> StepUpdate:
        raise RuntimeError("no hands")


def path_of(scheduler: type) -> str:
    """What `scheduler_cls` is for one of these, in processes that can import helpers."""
    return f"{scheduler.__module__}.{scheduler.__name__}"
