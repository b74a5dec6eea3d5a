"""Running small programs that use the engine, as their users do: in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

LIMIT = 120  # seconds; a watchdog
COMMAND = str(Path(sys.executable).parent / "ringpost")


def run_program(*arguments: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter with these arguments to its end; `text` is its standard input."""
    return _run([sys.executable, *arguments], text, environment)


def run_ringpost(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the `ringpost` command to its end."""
    return _run([COMMAND, *arguments], None, environment)


def _run(command: list[str], text: str | None, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=os.environ | environment,
        check=False,
    )
