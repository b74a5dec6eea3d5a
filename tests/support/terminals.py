"""Terminals with a command at them, as a user has it."""

import os
import select
import subprocess
import termios
from collections.abc import Callable
from functools import partial

from programs import COMMAND, LIMIT


class Terminal:
    """A terminal with a command at it."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        """Start the command. A dumb terminal unless TERM says otherwise."""
        self._ours, self._theirs = os.openpty()
        self._before = termios.tcgetattr(self._theirs)
        command, variables = [COMMAND, *arguments], os.environ | {"TERM": "dumb"} | environment
        self.process = subprocess.Popen(command, preexec_fn=partial(os.login_tty, self._theirs), env=variables)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str) -> str:
        """What appears on the screen up to this text."""
        while text not in self._seen:
            assert select.select([self._ours], [], [], LIMIT)[0], f"no {text!r} after {self._seen!r}"
            self._seen += os.read(self._ours, 4096).decode(errors="replace")
        before, _, self._seen = self._seen.partition(text)
        return before

    def wait_for_end(self) -> int:
        """The exit code; the terminal must be in the state it was in before."""
        code = self.process.wait(LIMIT)
        assert termios.tcgetattr(self._theirs) == self._before
        return code

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


def written(write: Callable[[int], None]) -> str:
    """What a function writes to the terminal whose descriptor it gets."""
    ours, theirs = os.openpty()
    try:
        write(theirs)
        os.write(theirs, b"end")
        text = b""
        while b"end" not in text:
            text += os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)
    return text.decode()
