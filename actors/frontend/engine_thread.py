"""EngineThread: an engine's processes, supervised from a thread with an event loop of its own: their owner may block."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from ...ipc.attach import MailboxHandle
from ...ipc.doorbell import ring_doorbell
from ...ipc.lanes import Lanes
from ...ipc.messages.config import EngineConfig
from ..errors import SHUT_DOWN, EngineDeadError, EngineStartError, failure_report, failure_text
from ..logs import logger
from ..loops import loop_factory
from ..recovery import Recovery
from ..status import StatusBlock, own_status
from ..supervisor import ProcessInfo, Supervisor
from ..tasks import first_of
from ..watch import EngineWatch


@dataclass(frozen=True)
class WorksAgain:
    """The engine was held up for so many seconds, and can work again."""

    seconds: float


@dataclass(frozen=True)
class Ended:
    """The engine's processes end, or have ended."""

    error: Exception


Event = Recovery | WorksAgain | Ended


@dataclass(frozen=True)
class Frontage:
    """What the owner of a running engine needs, and then owns."""

    requests: Lanes
    outputs: MailboxHandle
    num_blocks: int
    status: StatusBlock
    posting: ExitStack  # its end is that of the status

    def close(self) -> None:
        """Release what nobody came to own."""
        self.posting.close()
        self.requests.close()
        self.outputs.close()


class EngineThread:
    """Made and used by one owner. What happens to the processes is told as events, and a bell rings for each.

    The thread is a daemon: a program that ends does not wait for it, and the engine's processes end with the program.
    """

    def __init__(self, config: EngineConfig, bell: int) -> None:
        """Start the thread and, in it, the processes. `config` is resolved; `bell` is a doorbell that stays the owner's."""
        self._config = config
        self._bell = bell
        self._events: deque[Event] = deque()
        self._ready: Future[None] = Future()
        self._frontage: Frontage | None = None
        self._supervisor: Supervisor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told_to_stop = False
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="engine supervisor", daemon=True)
        self._thread.start()

    def wait_ready(self) -> Frontage:
        """Wait until the processes can work. Raises EngineStartError with the reason of the one that cannot."""
        self._ready.result()
        frontage, self._frontage = self._frontage, None
        assert frontage is not None
        return frontage

    def take_event(self) -> Event | None:
        """The next thing that has happened to the processes, in order; None when there is no more."""
        return self._events.popleft() if self._events else None

    def process_table(self) -> list[ProcessInfo]:
        """The engine's processes; none when it has ended."""
        return [] if self._supervisor is None else self._supervisor.process_table()

    def stop(self) -> bool:
        """Stop the processes in order and wait until they have ended. Interrupted in that, it kills them.

        False when nobody can wait, since this is the thread itself, where the owner happened to be collected.
        """
        self._told_to_stop = True
        self._call(self._stop.set)
        if threading.current_thread() is self._thread:
            return False
        try:
            self._thread.join()
        except BaseException:
            self._call(self._kill)
            self._thread.join()
            raise
        finally:
            if self._frontage is not None and not self._thread.is_alive():
                self._frontage.close()
                self._frontage = None
        return True

    def _kill(self) -> None:
        if self._supervisor is not None:
            self._supervisor.kill()

    def _call(self, function: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(function)

    def _main(self) -> None:
        error: Exception = EngineDeadError(SHUT_DOWN)
        try:
            with asyncio.Runner(loop_factory=loop_factory(self._config.runtime)) as runner:
                runner.run(self._live())
        except (ValueError, EngineStartError) as reason:
            error = reason
        except Exception as reason:  # noqa: BLE001 - the owner must learn of it, whatever it is
            logger.exception("the engine failed")
            error = EngineStartError(f"{type(reason).__name__}: {reason}")
        finally:
            if not self._ready.done():
                self._ready.set_exception(error)
            self._tell(Ended(error))

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._told_to_stop:  # before there was a loop to tell
            return
        async with Supervisor(self._config) as supervisor:
            self._supervisor = supervisor
            runtime = self._config.runtime
            on_hung = supervisor.replace_hung if runtime.max_restarts else None
            with EngineWatch(supervisor.topology.boots(), runtime.hang_timeout, on_hung) as self._watch:
                await first_of(self._serve(supervisor), self._stop.wait())
        self._supervisor = None

    async def _serve(self, supervisor: Supervisor) -> None:
        failure = await supervisor.wait_ready()
        if failure is not None:
            raise EngineStartError(failure_text(failure))
        topology = supervisor.topology
        with ExitStack() as made:
            requests = topology.requests[0][0].duplicate()
            made.callback(requests.close)
            outputs = topology.outputs[0][0].duplicate()
            made.callback(outputs.close)
            posting = ExitStack()
            status = posting.enter_context(own_status(topology.statuses[0], "frontend0", "frontend"))
            self._frontage = Frontage(requests, outputs, supervisor.ready_of("engine_core").num_blocks, status, posting)
            made.pop_all()
        self._ready.set_result(None)
        await first_of(self._watch.run(), self._attend(supervisor))

    async def _attend(self, supervisor: Supervisor) -> None:
        failure = await supervisor.run(self)
        logger.error("the engine died: %s", failure_report(failure))
        self._tell(Ended(EngineDeadError(failure_text(failure))))

    def died(self, recovery: Recovery) -> None:
        """See Observer. The owner learns of it when it next looks; until then nobody sends the successor anything."""
        if recovery.delay is not None:
            self._watch.replaced(recovery.replaced)
        self._tell(recovery)

    def works_again(self, seconds: float) -> None:
        """See Observer."""
        self._tell(WorksAgain(seconds))

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        ring_doorbell(self._bell)
