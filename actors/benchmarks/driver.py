"""`python -P -m ringpost.actors.benchmarks.driver JOB`: the process that takes one measurement.

It is the hub; the peers are forked from it before anything runs in it, which is how a link reaches them. They end with it, and
it ends with whoever holds the other end of its standard input; when a peer fails, so does the driver.
"""

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

import msgspec

from ...ipc.messages.config import RuntimeConfig
from ..loops import loop_factory
from .measurements import MEASUREMENTS, Case, Figures, Measurement, run_hub
from .messages import LARGE, sample
from .transport import TRANSPORTS, Link, Setup, make_link

_EXIT_FAILED = 1
_STANDARD_INPUT = 0


class Job(msgspec.Struct, frozen=True):
    """One measurement of one transport."""

    transport: str
    measurement: str
    size: int  # bytes
    seconds: float
    folder: str


def main() -> None:
    """Take the measurement and print its figures as JSON."""
    job = msgspec.json.decode(sys.argv[1], type=Job)
    measurement = MEASUREMENTS[job.measurement]
    link = make_link(
        job.transport, Setup(measurement.peers, measurement.spin, measurement.sleep, job.size >= LARGE, job.folder)
    )
    in_flight = TRANSPORTS[job.transport].in_flight
    case = Case(sample(job.size), job.size, job.seconds, in_flight, measurement.peers)
    lifeline, held = os.pipe()
    peers = [
        get_context("fork").Process(target=_peer, args=(measurement, link, case, number, lifeline, held))
        for number in range(measurement.peers)
    ]
    for peer in peers:
        peer.start()
    os.close(lifeline)
    _in_thread(_end_after, _STANDARD_INPUT)
    for peer in peers:
        _in_thread(_end_unless_in_order, peer.pid)
    sys.stdout.write(msgspec.json.encode(_run(_hub, measurement, link, case)).decode())
    for peer in peers:
        peer.join()
    sys.exit(_EXIT_FAILED if any(peer.exitcode for peer in peers) else 0)


async def _hub(measurement: Measurement, link: Link, case: Case) -> Figures:
    end = await link.hub()
    figures = await run_hub(measurement, end, case)
    end.close()
    return figures


def _peer(measurement: Measurement, link: Link, case: Case, number: int, lifeline: int, held: int) -> None:
    """Body of a peer's process."""
    os.close(held)
    _in_thread(_end_after, lifeline)
    _run(_serve, measurement, link, case, number)


async def _serve(measurement: Measurement, link: Link, case: Case, number: int) -> None:
    end = await link.peer(number)
    await measurement.peer(end, case, number)
    end.close()


def _run(body: Callable[..., Any], *arguments: Any) -> Any:
    """Run a coroutine. When it fails the process ends at once: a transport might wait for ever for a process that has gone."""
    try:
        with asyncio.Runner(loop_factory=loop_factory(RuntimeConfig())) as runner:
            return runner.run(body(*arguments))
    except BaseException:  # noqa: BLE001 (whatever it is, it has to be told)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(_EXIT_FAILED)


def _in_thread(body: Callable[[Any], None], argument: Any) -> None:
    threading.Thread(target=body, args=(argument,), daemon=True).start()


def _end_after(lifeline: int) -> None:
    """End this process when the last other end of a pipe is closed, whatever the main thread does."""
    os.read(lifeline, 1)
    os._exit(_EXIT_FAILED)


def _end_unless_in_order(pid: int) -> None:
    """End this process when a child failed."""
    with suppress(ChildProcessError):  # it has been waited for already
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if end is not None and end.si_code != os.CLD_EXITED:
            sys.stderr.write(f"a peer (pid {pid}) was killed by signal {end.si_status}\n")
            sys.stderr.flush()
        if end is not None and end.si_status:
            os._exit(_EXIT_FAILED)


if __name__ == "__main__":
    main()
