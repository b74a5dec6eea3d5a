"""Faults as data: what befalls an engine's actors, and when. A test writes a script, and the actors' processes read it.

Every strike is noted in a log before it happens, so that a fault strikes as often as it may, also over restarts.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from ringpost.actors.base import Actor
from ringpost.actors.boot import Boot, Control
from ringpost.ipc.messages.control import Reattach
from ringpost.ipc.messages.plans import Reset
from ringpost.ipc.messages.requests import AddRequest

SCRIPT = "RINGPOST_TEST_FAULTS"  # the environment variable that names the file
ALWAYS = 1 << 30
TOLD = "told by a script"  # what the fault "raise" says


class FaultStruck(Exception):
    """What the fault "raise" raises."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that befalls an actor `at` a message, or whenever a scripted worker computes a request that is so.

    In a request's computation, "raise" fails that request alone; elsewhere it is the actor's end.
    """

    do: Literal["kill", "stop", "exit", "raise", "delay", "wait"]
    actor: str = "worker0.0"
    at: int | None = None  # before the so many-th message of an epoch is handled; 0: when the process begins
    message: str | None = None  # only messages of this type count
    prompt_token: int | None = None  # its prompt holds this token
    seed: int | None = None
    sampled: int | None = None  # this token would be sampled for it
    first_epoch: int = 1
    last_epoch: int = ALWAYS
    times: int = 1  # in all epochs together
    value: float = 0  # exit code; seconds of a delay

    def concerns(self, request: AddRequest) -> bool:
        """Whether it strikes when this request is computed; not if it strikes at a message, or at a token alone."""
        wanted = [
            self.prompt_token is None or self.prompt_token in request.prompt,
            self.seed is None or self.seed == request.params.seed,
        ]
        return self.at is None and all(wanted)


class Strike(msgspec.Struct, frozen=True):
    """A line of the log."""

    fault: int  # index into the script; -1: a check that failed
    do: str
    actor: str
    pid: int
    epoch: int
    time: float  # of CLOCK_MONOTONIC


class FaultScript(msgspec.Struct, frozen=True, kw_only=True):
    """The whole script."""

    log: str
    gate: str  # a FIFO: the fault "wait" lasts until it is opened for writing and closed
    faults: list[Fault] = []
    step_seconds: float = 0  # that a scripted worker takes for a step

    def strikes(self) -> list[Strike]:
        """What has happened so far."""
        with suppress(FileNotFoundError):
            return [msgspec.json.decode(line, type=Strike) for line in Path(self.log).read_bytes().splitlines()]
        return []


class Faults:
    """The script's faults in the process of one actor."""

    def __init__(self, script: FaultScript, actor: str, epoch: int) -> None:
        self.script = script
        self._actor = actor
        self._epoch = epoch
        self._taken: Counter[str | None] = Counter()  # messages of this epoch, by type; under None all of them
        self._own = [(index, fault) for index, fault in enumerate(script.faults) if fault.actor == actor]

    def begin(self) -> None:
        """The process begins."""
        self._befall(0, [None])

    def before(self, message: object) -> None:
        """A message is about to be handled."""
        if isinstance(message, Reset | Reattach) and message.epoch > self._epoch:
            self._epoch = message.epoch
            self._taken.clear()
        for kind in (None, type(message).__name__):
            self._taken[kind] += 1
            self._befall(self._taken[kind], [kind])

    def _befall(self, number: int, kinds: list[str | None]) -> None:
        for index, fault in self._own:
            if fault.at == number and fault.message in kinds and self._is_due(index, fault):
                self._strike(index, fault)

    def computing(self, request: AddRequest) -> bool:
        """A request is about to be computed. True when it has to fail."""
        return any([self._hit(index, fault) for index, fault in self._concerning(request) if fault.sampled is None])

    def sampling(self, request: AddRequest, token: int) -> None:
        """A token is about to be sampled for a request."""
        for index, fault in self._concerning(request):
            if fault.sampled == token:
                self._hit(index, fault)

    def _concerning(self, request: AddRequest) -> Iterator[tuple[int, Fault]]:
        return ((index, fault) for index, fault in self._own if fault.concerns(request) and self._is_due(index, fault))

    def _hit(self, index: int, fault: Fault) -> bool:
        try:
            self._strike(index, fault)
        except FaultStruck:
            return True
        return False

    def _is_due(self, index: int, fault: Fault) -> bool:
        if not fault.first_epoch <= self._epoch <= fault.last_epoch:
            return False
        return sum(strike.fault == index for strike in self.script.strikes()) < fault.times

    def note(self, index: int, what: str) -> None:
        """Write a line of the log."""
        strike = Strike(index, what, self._actor, os.getpid(), self._epoch, time.monotonic())
        with open(self.script.log, "ab") as log:
            log.write(msgspec.json.encode(strike) + b"\n")

    def _strike(self, index: int, fault: Fault) -> None:
        self.note(index, fault.do)
        match fault.do:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "exit":
                os._exit(int(fault.value))
            case "raise":
                raise FaultStruck(TOLD)
            case "delay":
                time.sleep(fault.value)
            case "wait":
                Path(self.script.gate).read_bytes()


_begun: list[Faults] = []  # of this process


def faults_here() -> Faults:
    """Those of this process, once its actor has begun."""
    (faults,) = _begun
    return faults


def install() -> None:
    """Let the script of the environment befall the actor that this process is about to be."""
    script = msgspec.json.decode(Path(os.environ[SCRIPT]).read_bytes(), type=FaultScript)
    init, dispatch = Control.__init__, Actor.dispatch

    def begin(self: Control, boot: Boot, began: float) -> None:
        _begun.append(Faults(script, boot.actor, boot.epoch))
        faults_here().begin()
        init(self, boot, began)

    def dispatch_after(self: Actor, message: object) -> None:
        faults_here().before(message)
        dispatch(self, message)

    Control.__init__ = begin  # type: ignore[method-assign]
    Actor.dispatch = dispatch_after  # type: ignore[method-assign]
