"""Taking one measurement in processes of its own, which end with it, and with this process."""

import os
import subprocess
import sys

import msgspec

from ..errors import EngineError
from .driver import Job
from .measurements import Figures
from .transport import TRANSPORTS

_MODULE = "ringpost.actors.benchmarks.driver"
_PATIENCE = 60.0  # seconds beyond the measured ones


class BenchmarkError(EngineError):
    """A measurement failed; the message says which and why. Nothing of it is left running."""


def measure(job: Job) -> Figures:
    """Take the measurement. Raises BenchmarkError."""
    lifeline, held = os.pipe()
    try:
        command = [sys.executable, "-P", "-m", _MODULE, msgspec.json.encode(job).decode()]
        try:
            # A group of its own, because a terminal's Ctrl-C is ours to handle.
            driver = subprocess.Popen(
                command, stdin=lifeline, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
            )
        finally:
            os.close(lifeline)
        with driver:
            return msgspec.json.decode(_result(driver, job), type=Figures)
    finally:
        os.close(held)


def _result(driver: "subprocess.Popen[str]", job: Job) -> str:
    """What the driver printed. When this returns or raises, it has ended, and its peers too, which hold the same outputs."""
    what = f"{job.measurement} of {job.size} bytes through {TRANSPORTS[job.transport].label}"
    try:
        output, errors = driver.communicate(timeout=job.seconds + _PATIENCE)
    except BaseException as error:
        driver.kill()
        driver.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise BenchmarkError(f"{what}: no result after {error.timeout:g} s") from None
        raise
    if driver.returncode:
        lines = errors.strip().splitlines() or [f"exit code {driver.returncode}"]
        raise BenchmarkError(f"{what}: {lines[-1]}")
    return output
