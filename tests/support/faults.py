"""Faults inside an engine's processes, brought in by modules that they find before the real ones."""

import signal
from pathlib import Path

import pytest

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


def _put(folder: Path, module: str, source: str, patch: pytest.MonkeyPatch) -> None:
    (folder / f"{module}.py").write_text(source)
    patch.setenv("PYTHONPATH", str(folder))
