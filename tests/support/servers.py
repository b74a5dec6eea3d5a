"""Servers in processes of their own: started, ready when the block begins, and gone without a trace at its end."""

import os
import re
import signal
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from programs import COMMAND, LIMIT

_DEFAULTS = {"--port": "0", "--served-model-name": "m"}


class ServerProcess:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[str]", errors: IO[str], ready_line: str) -> None:
        self.process = process
        self.ready_line = ready_line  # what it printed when it was ready
        self.url = _address(ready_line)
        self._errors = errors

    def stderr(self) -> str:
        """What it wrote to standard error so far; also after its end, inside the block."""
        return _text(self._errors)

    def health(self) -> int:
        """The status of /health; 0 when nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=LIMIT) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return refusal.code
        except OSError:
            return 0

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code; a server that does not end is killed and fails the test."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """The exit code, once it has ended."""
        return self.process.wait(LIMIT)


@contextmanager
def running_server(*arguments: str, **environment: str) -> Iterator[ServerProcess]:
    """`ringpost serve` with these arguments; on a free port and with the model's name `m` unless they say otherwise."""
    given = {argument.partition("=")[0] for argument in arguments}
    defaults = [word for option, value in _DEFAULTS.items() if option not in given for word in (option, value)]
    with running_program([COMMAND, "serve", *arguments, *defaults], **environment) as server:
        yield server


@contextmanager
def running_program(command: Sequence[str], **environment: str) -> Iterator[ServerProcess]:
    """Any server that prints its address in the first line of its output.

    At the end of the block it is stopped, if it still runs, and must then end with exit code 0.
    """
    with tempfile.TemporaryFile("w+") as errors, _started(command, errors, environment) as process:
        try:
            server = ServerProcess(process, errors, _first_line(process, errors))
            yield server
            if process.poll() is None:
                code = server.stop()
                assert code == 0, f"exit code {code}: {server.stderr()}"
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def _started(command: Sequence[str], errors: IO[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=os.environ | environment,
        start_new_session=True,
    )


def _first_line(process: "subprocess.Popen[str]", errors: IO[str]) -> str:
    """Its first line of output. Raises AssertionError, with what it said, when it ends before or lets us wait."""
    assert process.stdout is not None
    watchdog = threading.Timer(LIMIT, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
    finally:
        watchdog.cancel()
        watchdog.join()
    assert line, f"the server ended with code {process.wait(LIMIT)} before it was ready: {_text(errors)}"
    return line


def _address(line: str) -> str:
    found = re.search(r"http://[^\s/]+", line)
    assert found, f"no address in {line!r}"
    return found[0]


def _text(file: IO[str]) -> str:
    """A file of text from its beginning; whoever writes into it is not disturbed."""
    return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")
