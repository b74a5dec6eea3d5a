"""Faults inside an engine's processes, brought in by modules that they find before the real ones, or told by a script."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from fault_script import SCRIPT, Fault, FaultScript, Strike

from ringpost.actors.process import ActorProcess

_SUPPORT = Path(__file__).parent
LEAVES, FAILS = signal.SIGUSR1, signal.SIGUSR2
_OBEYS = f"""
import os, signal, sys
if "--actor" in sys.orig_argv:
    class Fault(BaseException):  # no Exception, which may be the failure of one request alone
        pass
    def leave(*_):
        os._exit(3)
    def fail(*_):
        raise Fault("told by a signal")
    signal.signal({LEAVES.value}, leave)
    signal.signal({FAILS.value}, fail)
"""
_FOLLOWS_SCRIPT = """
import sys
if "--actor" in sys.orig_argv:
    import fault_script
    fault_script.install()
"""
_HANGS = """
import threading
print("waits for a disk", flush=True)
threading.Event().wait()
"""


def obedient_actors(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Actors that start from now on exit with code 3 at the signal LEAVES, and raise a Fault at FAILS.

    With the event loop asyncio: uvloop only logs what a signal handler raises.
    """
    _put(folder, "sitecustomize", _OBEYS, patch)


def hanging_import(module: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Actors that start from now on print a line and hang when they import a module."""
    _put(folder, module, _HANGS, patch)


def broken_import(module: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Actors that start from now on fail when they import a module."""
    _put(folder, module, "raise RuntimeError('a broken installation')\n", patch)


def scripted_workers(patch: pytest.MonkeyPatch) -> None:
    """Engines that this process starts from now on have scripted workers. They need a script, even one without faults."""
    real = ActorProcess.command

    def command(process: ActorProcess) -> list[str]:
        words = real(process)
        module = words.index("-m")
        if not words[module + 1].endswith(".worker"):
            return words
        return [sys.executable, str(_SUPPORT / "scripted_worker.py"), *words[module + 2 :]]

    patch.setattr(ActorProcess, "command", command)


def script_of(folder: Path, patch: pytest.MonkeyPatch, *faults: Fault, step_seconds: float = 0.0) -> FaultScript:
    """Actors that start from now on follow a script of these faults."""
    script = FaultScript(log=str(folder / "strikes"), gate=str(folder / "gate"), faults=[*faults], step_seconds=step_seconds)
    os.mkfifo(script.gate)
    (folder / "script.json").write_bytes(msgspec.json.encode(script))
    patch.setenv(SCRIPT, str(folder / "script.json"))
    _put(folder, "sitecustomize", _FOLLOWS_SCRIPT, patch)
    return script


async def struck(script: FaultScript, count: int = 1) -> list[Strike]:
    """The strikes, once there are so many."""
    while len(strikes := script.strikes()) < count:
        await asyncio.sleep(0)
    return strikes


def open_gate(script: FaultScript) -> None:
    """Let the process go on that waits, or is about to wait, at the gate."""
    with open(script.gate, "wb"):
        pass


def importable_helpers(patch: pytest.MonkeyPatch) -> None:
    """Processes that start from now on can import what lies beside this file."""
    patch.setenv("PYTHONPATH", str(_SUPPORT))


def _put(folder: Path, module: str, source: str, patch: pytest.MonkeyPatch) -> None:
    (folder / f"{module}.py").write_text(source)
    patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{_SUPPORT}")
