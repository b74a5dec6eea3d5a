"""EngineLife: an engine's processes and mailboxes, from their start to their end, in one event loop."""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from ...ipc.messages.config import EngineConfig
from ...ipc.messages.failure import Failure
from ...ipc.messages.load import LoadStats
from ...ipc.messages.outputs import UtilityReply
from ...ipc.messages.requests import RequestMessage
from ...model_runner.logits_processor import LogitsProcessor
from ...model_runner.processor_loading import ready_processors
from ..asking import unwatched
from ..base import TaskHost, run_abandonable
from ..boot import describe_failure, first_cause
from ..config import resolve_config
from ..debug import AskWatch, watch_handlers
from ..errors import (
    SHUT_DOWN,
    EngineDeadError,
    EngineHungError,
    EngineRecoveringError,
    EngineStartError,
    failure_report,
    failure_text,
)
from ..logs import logger
from ..start_phases import READY, StartPhases
from ..status import own_status
from ..supervisor import ProcessInfo, Supervisor
from ..watch import EngineWatch
from .actor import Frontend
from .controls import EngineControls
from .core_client import CoreClient
from .input_processor import InputProcessor
from .output_processor import OutputProcessor
from .renderer import Renderer
from .sessions import Sessions
from .stats import FrontendStats
from .stats_log import StatsLog
from .submission import Submitter


class EngineLife(EngineControls):
    """Starts on first use or by `async with`, serves, recovers, and ends. A subclass sends requests while it serves.

    Made in any thread and before a loop runs; used from one event loop.
    """

    def __init__(self, config: EngineConfig, logits_processors: Sequence[LogitsProcessor] = ()) -> None:
        """Nothing is started yet. `logits_processors` are objects: ValueError if there are any without `single_process`."""
        if logits_processors and not config.runtime.single_process:
            rule = "logits_processors must be import paths, which every process can load; objects need single_process"
            raise ValueError(f"{rule}, got {logits_processors[0]!r:.100}")
        self.config = config
        self._processors = tuple(logits_processors)
        self._host: TaskHost | None = None
        self._supervisor: Supervisor | None = None
        self._launched = asyncio.Event()  # its processes run, or never will
        self._settled = asyncio.Event()  # the start has succeeded or failed
        self._ended = asyncio.Event()
        self._outputs = OutputProcessor()
        self._sessions: Sessions | None = None  # once it serves
        self._stats_log = StatsLog(self._outputs.stats, self.load)
        self._error: Exception | None = None  # why the engine takes no requests
        self._running = False
        self._stopping = False  # it ends by itself, and in order

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.shutdown()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        await self.shutdown()

    async def start(self) -> None:
        """Start the engine and wait until it can serve; later calls wait for the same start.

        Raises ValueError for a model that cannot be used, EngineStartError with the reason of a process that failed (nothing is
        left running), EngineDeadError after the engine's death or shutdown. Cancelling the wait does not stop the start.
        """
        if self._host is None and self._error is None:
            self._host = TaskHost(self._run(), "engine")
        if not self._settled.is_set():
            await self._settled.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)

    async def wait_launched(self) -> None:
        """Return when the engine's processes have begun to start, or the start has failed."""
        await self._launched.wait()

    async def _run(self) -> None:
        """The engine's life; cancelled by `shutdown`."""
        try:
            with ready_processors(self._processors) as entries:
                await self._live(entries)
        except (ValueError, EngineStartError) as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - whoever waits for the start must learn of it, whatever it is
            logger.exception("the engine failed")
            self._end(EngineStartError(f"{type(error).__name__}: {error}"))
        finally:
            self._end(EngineDeadError(SHUT_DOWN))

    async def _live(self, entries: tuple[str, ...]) -> None:
        """The same, with entries that stand for ready logits processors."""
        phases = StartPhases()
        model = replace(self.config.model, logits_processors=(*self.config.model.logits_processors, *entries))
        config = await run_abandonable(resolve_config, replace(self.config, model=model))
        phases.end("model")
        async with Supervisor(config) as supervisor:
            self._supervisor = supervisor
            self._launched.set()
            phases.end("processes")
            on_hung = supervisor.replace_hung if config.runtime.max_restarts else None
            with (
                own_status(supervisor.topology.statuses[0], "frontend0", "frontend") as self._status,
                EngineWatch(supervisor.topology.boots(), config.runtime.hang_timeout, on_hung) as self._watch,
            ):
                skip = config.model.skip_tokenizer_init
                self._renderer = await asyncio.to_thread(Renderer, config.checkpoint, skip_tokenizer_init=skip)
                phases.end("tokenizer")
                failure = await supervisor.wait_ready()
                if failure is not None:
                    raise EngineStartError(failure_text(failure))
                phases.end("wait for processes")
                self._note_start(phases, supervisor.process_table()[1:])
                await self._serve(config, supervisor)
            self._stopping = True

    def _note_start(self, phases: StartPhases, children: Sequence[ProcessInfo]) -> None:
        self.stats.started("frontend0", phases.seconds)
        for child in children:
            self.stats.started(child.actor, child.phases | {READY: child.ready_seconds})

    def _end(self, error: Exception) -> None:
        """Take no more requests, and tell whoever waits why. The first reason stands."""
        self._running = False
        self._error = self._error or error
        self._launched.set()
        self._settled.set()
        self._ended.set()

    async def _serve(self, config: EngineConfig, supervisor: Supervisor) -> None:
        """Serve requests until cancelled or until the engine cannot go on. Nobody is left waiting."""
        self.config = config
        topology = supervisor.topology
        debug = config.runtime.debug_actors
        watch = AskWatch("frontend0", self._status.asking, self._watch.asks_of) if debug else unwatched
        requests, outputs = topology.requests[0][0].duplicate(), topology.outputs[0][0].duplicate()
        self._client = CoreClient(
            requests, outputs, lambda: self._for_successor(self._client, self._outputs), watch=watch, debug=debug
        )
        frontend = Frontend(self._client, self._outputs, self._status, self._watch, config.scheduler)
        if debug:
            watch_handlers(frontend, "frontend0")
        self._inputs = InputProcessor(config, self._renderer, supervisor.ready_of("engine_core").num_blocks)
        self._submitter = Submitter(config, self._renderer, self._inputs, self._outputs, self._client.next_number, self._drop)
        self._sessions = Sessions(config, self._client, self._inputs, self._outputs, self._submitter)
        self._running = True
        self._settled.set()
        self._status.state("ready")
        error = EngineDeadError(SHUT_DOWN)
        try:
            failure = await self._wait_failed(supervisor, frontend, self._sessions)
            error = EngineDeadError(failure_text(failure))
            logger.error("the engine died: %s", failure_report(failure))
        finally:
            self._end(error)
            self._sessions.fail_all(error)
            self._outputs.fail_all(error)
            self._client.fail(error)
            self._client.close()

    async def _wait_failed(self, supervisor: Supervisor, frontend: Frontend, sessions: Sessions) -> Failure:
        """Run the frontend's tasks until a process dies for good or one of them fails."""
        failure: Failure | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                bodies = [frontend.receive(), self._client.run(), sessions.run(), self._watch.run()]
                if self.config.runtime.log_stats:
                    bodies.append(self._stats_log.run())
                running = [tasks.create_task(body) for body in bodies]
                failure = await supervisor.run(frontend)
                for task in running:
                    task.cancel()
        except BaseExceptionGroup as group:  # a task failed, perhaps only because the process at its other end did
            failure = failure or describe_failure("frontend0", first_cause(group))
        assert failure is not None
        return failure

    def _drop(self, number: int) -> None:
        """Have the core forget a request."""
        if self._running:
            self._client.abort(number)

    async def _ask(self, call: Callable[[int], RequestMessage], seconds: float | None = None) -> UtilityReply:
        await self.start()
        return await self._client.ask(call, self.config.runtime.hang_timeout if seconds is None else seconds)

    def load(self) -> LoadStats | None:
        """How busy the core was after its last step, also when it hangs. None while the engine does not run."""
        return self._watch.load() if self._running else None

    async def check_health(self) -> None:
        """Raise EngineDeadError, with the reason, when the engine has died or was shut down.

        Raise EngineRecoveringError, with the reason, while a process that died is replaced, and EngineHungError when one has
        held a message for longer than `hang_timeout`; requests are still taken, and wait.
        """
        if self._error is not None:
            raise EngineDeadError(str(self._error))
        down = self._supervisor.down if self._running and self._supervisor is not None else None
        if down is not None:
            raise EngineRecoveringError(f"{failure_text(down)}; it is being replaced")
        if self._running and self._watch.hung is not None:
            raise EngineHungError(self._watch.hung)

    async def wait_ended(self) -> None:
        """Return when the engine can serve no more, for whatever reason; `check_health` raises it."""
        await self._ended.wait()

    @property
    def errored(self) -> bool:
        """Whether the engine cannot serve any more."""
        return self._error is not None

    @property
    def is_running(self) -> bool:
        """Whether the engine can serve now."""
        return self._running

    @property
    def num_unfinished_requests(self) -> int:
        """Live requests of this program; of sessions those with a turn that runs."""
        return len(self._outputs)

    @property
    def stats(self) -> FrontendStats:
        """Counts and times of this program's requests since the engine was made. The live object: read it, never write."""
        return self._outputs.stats

    def process_table(self) -> list[ProcessInfo]:
        """The engine's processes. Only after `start`."""
        assert self._supervisor is not None
        return self._supervisor.process_table()

    def kill(self) -> None:
        """End the engine's processes at once; `shutdown` then has nothing left to wait for. For whoever cannot wait."""
        if self._supervisor is not None:
            self._supervisor.kill()

    async def shutdown(self) -> None:
        """Stop the engine's processes and wait until they have ended.

        Consumers of live requests and sessions get a last output with finish reason "abort". A second call does nothing; the
        engine cannot be started again.
        """
        self._end(EngineDeadError(SHUT_DOWN))
        if self._sessions is not None:
            self._sessions.abort_all(EngineDeadError(SHUT_DOWN))
        for live in self._outputs.live():
            self._outputs.abort(live)
        if self._host is not None and not self._stopping:
            self._host.cancel()
        if self._host is not None:
            await self._host.wait()
