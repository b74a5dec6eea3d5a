"""`ringpost bench` as a user runs it, interrupts it and loses a process of it: nothing stays behind."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from process_tree import all_end, child_pids
from programs import COMMAND, LIMIT, run_ringpost

from ringpost.actors.benchmarks.mailbox import Report
from ringpost.actors.benchmarks.transport import TRANSPORTS

ENDLESS = ("bench", "mailbox", "--seconds", "10000", "--measurements", "parked", "--sizes", "20B", "--transports")


def test_it_measures_in_processes_of_its_own(no_leaks: None, tmp_path: Path) -> None:
    arguments = ("--json", "--seconds", "0.01", "--repeat", "1", "--sizes", "600B", "--measurements", "echo", "broadcast")
    done = run_ringpost("bench", "mailbox", *arguments, TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    report = msgspec.json.decode(done.stdout, type=Report)
    assert len(report.results) == 2 * len(TRANSPORTS)
    assert len(report.ratios) == 2
    assert list(tmp_path.iterdir()) == []


@contextmanager
def measuring(transport: str, folder: Path) -> Iterator[tuple["subprocess.Popen[str]", int, int]]:
    """The command in the middle of a measurement, with the pids of its driver and of the driver's peer, which end as well."""
    command = [COMMAND, *ENDLESS, transport]
    environment = os.environ | {"TMPDIR": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while not (peers := [(driver, peer) for driver in child_pids(process.pid) for peer in child_pids(driver)]):
            assert process.poll() is None
        ((driver, peer),) = peers
        with all_end([driver, peer]):
            yield process, driver, peer
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_everything(no_leaks: None, tmp_path: Path, transport: str, number: int, code: int) -> None:
    with measuring(transport, tmp_path) as (process, _, _):
        process.send_signal(number)
        output, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, output, errors) == (code, "", "")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("victim", ["driver", "peer"])
def test_a_process_that_dies_is_one_line(no_leaks: None, tmp_path: Path, transport: str, victim: str) -> None:
    with measuring(transport, tmp_path) as (process, driver, peer):
        os.kill(driver if victim == "driver" else peer, signal.SIGKILL)
        output, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, output, errors.count("\n")) == (1, "", 1)
        assert errors.startswith(f"ringpost bench: parked of 20 bytes through {TRANSPORTS[transport].label}: ")
        assert ("exit code -9" if victim == "driver" else f"(pid {peer}) was killed by signal 9") in errors


def test_killed_itself_it_leaves_no_process(no_leaks: None, tmp_path: Path) -> None:
    with measuring("ringpost", tmp_path) as (process, _, _):
        process.kill()
        process.communicate(timeout=LIMIT)
        (left,) = tmp_path.iterdir()
        for folder in (*left.iterdir(), left):
            folder.rmdir()
