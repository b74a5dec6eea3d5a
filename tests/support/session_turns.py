"""Turns of sessions for tests of a scheduler."""

from collections.abc import Sequence
from typing import Any

import msgspec
from schedulers import add_request, entered, run_to_end

from ringpost.ipc.messages.requests import AddRequest
from ringpost.sched.context import Context
from ringpost.sched.integrity import check_integrity
from ringpost.sched.scheduler import Scheduler

ONE, TWO, THREE = 71, 72, 73  # sessions
OUT = 60  # what schedulers.complete samples


def turn(number: int, prompt: int | Sequence[int], base: int = 0, max_tokens: int | None = 2, **more: Any) -> AddRequest:
    """A turn, of session ONE if no other is named; `prompt` is what is new."""
    session = more.pop("session", ONE)
    return msgspec.structs.replace(add_request(number, prompt, max_tokens, **more), session=session, base=base)


def context(scheduler: Scheduler, session: int = ONE) -> Context:
    """What is known of a session between two turns."""
    return scheduler.places.sessions.contexts[session]


def free(scheduler: Scheduler) -> int:
    """How many blocks nobody holds."""
    return scheduler.stats().free_blocks


def talk(scheduler: Scheduler, *turns: AddRequest) -> list[tuple[int, int]]:
    """Let turns follow one another; returns where each has begun."""
    begun = []
    for one in turns:
        assert scheduler.add(one) is None
        check_integrity(scheduler)
        begun += entered(*run_to_end(scheduler))
    return begun
