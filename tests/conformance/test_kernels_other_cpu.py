"""The C kernels as they are compiled for CPUs with fewer instructions than this one."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MARCHES = ["x86-64-v3", pytest.param("x86-64", marks=pytest.mark.long)]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are names of x86-64's levels")
@pytest.mark.parametrize("march", MARCHES)
def test_plain_vectors(march: str) -> None:
    """The conformance suite, in a process of its own: a process has one library."""
    names = ("test_kernels.py", "test_kernels_noise.py", "test_kernels_quantized.py", "test_kernels_decoder.py")
    suites = [str(HERE / name) for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "cpu or in_c", "-p", "no:cacheprovider", *suites]
    done = subprocess.run(
        command, env={**os.environ, "RINGPOST_KERNELS_MARCH": march}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
