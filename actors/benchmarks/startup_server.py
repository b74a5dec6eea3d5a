"""One start of `ringpost serve`: how long until it is healthy and has answered, and what its processes take."""

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from .launch import BenchmarkError

_METRIC = "ringpost:start_seconds"
_PATIENCE = 60.0  # seconds for a reply, and for the server's end
_EXIT_MISTAKE = 2  # of the server: the model, or an option, is wrong
_QUESTION = {"prompt": "a", "max_tokens": 1, "ignore_eos": True}


class Usage(msgspec.Struct, frozen=True):
    """What a process has used once it has answered."""

    cpu_seconds: float
    pss: int  # bytes: its share of what it uses with others
    peak_rss: int  # bytes: the most it ever had, all that others use too included


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What one start came to, in seconds."""

    healthy: float  # from exec to status 200 of /health
    answered: float  # from then on to the first completion of one token
    phases: dict[str, dict[str, float]]  # by actor, then by phase, as in the server's metrics
    usage: dict[str, Usage]  # by actor


def measure_start(model: str) -> Start:
    """Start a server for this model on a free port, and stop it.

    Raises ValueError for a model that cannot be used, BenchmarkError when the server fails.
    """
    with TemporaryFile("w+") as errors:
        began = time.monotonic()
        with _server(model, errors) as server:
            address = _address(server, errors)
            _ask(address, "GET", "/health")
            healthy = time.monotonic()
            _ask(address, "POST", "/v1/completions", json.dumps(_QUESTION))
            answered = time.monotonic()
            return Start(
                healthy=healthy - began,
                answered=answered - healthy,
                phases=_phases(_ask(address, "GET", "/metrics")),
                usage={actor: _usage(pid) for actor, pid in _processes(server.pid).items()},
            )


@contextmanager
def _server(model: str, errors: IO[str]) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-P", "-m", "ringpost", "serve", "--model", model, "--port", "0"]
    # A group of its own, because a terminal's Ctrl-C is ours to handle.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0
    ) as server:
        try:
            yield server
            server.terminate()
            server.wait(_PATIENCE)
        finally:
            server.kill()


def _address(server: "subprocess.Popen[str]", errors: IO[str]) -> str:
    """Host and port, from the line that a server prints when it is ready. Raises its error when it ends instead."""
    assert server.stdout is not None
    if found := re.search(r"http://(\S+)", server.stdout.readline()):
        return found[1]
    code = server.wait()
    errors.seek(0)
    lines = errors.read().strip().splitlines() or [f"exit code {code}"]
    if code == _EXIT_MISTAKE:
        raise ValueError(lines[-1].removeprefix("ringpost serve: "))
    raise BenchmarkError(f"the server did not start: {lines[-1]}")


def _ask(address: str, method: str, path: str, body: str | None = None) -> str:
    """The body of the reply. Raises BenchmarkError for a status other than 200, or without a reply."""
    connection = http.client.HTTPConnection(address, timeout=_PATIENCE)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise BenchmarkError(f"{method} {path}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if reply.status != http.HTTPStatus.OK:
        raise BenchmarkError(f"{method} {path}: status {reply.status}, {text:.200}")
    return text


def _phases(metrics: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(metrics):
        if family.name == _METRIC:
            for sample in family.samples:
                found.setdefault(sample.labels["actor"], {})[sample.labels["phase"]] = sample.value
    return found


def _processes(server: int) -> dict[str, int]:
    """The pids of a server and of the actors that it has started, by their names."""
    found = {"frontend0": server}
    for task in Path(f"/proc/{server}/task").iterdir():
        for pid in map(int, (task / "children").read_text(encoding="ascii").split()):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            found[words[words.index("--actor") + 1]] = pid
    return found


def _usage(pid: int) -> Usage:
    proc = Path(f"/proc/{pid}")
    ticks = (proc / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]  # user and system
    cpu = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return Usage(cpu, _kilobytes(proc / "smaps_rollup", "Pss") << 10, _kilobytes(proc / "status", "VmHWM") << 10)


def _kilobytes(file: Path, field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return int(found[1]) if found else 0
