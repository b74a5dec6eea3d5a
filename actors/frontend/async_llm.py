"""AsyncLLM: the engine as an asyncio program sees it."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from ...ipc.messages.config import EngineConfig
from ...ipc.messages.failure import Failure
from ...ipc.messages.load import LoadStats
from ...ipc.messages.outputs import EngineDescription, FinishReason
from ...ipc.messages.requests import DescribeEngine, ResetPrefixCache
from ...ipc.messages.sampling import SamplingParams
from ..asking import unwatched
from ..base import TaskHost, run_abandonable
from ..boot import describe_failure, first_cause
from ..config import check_config, engine_config, resolve_config
from ..debug import AskWatch, watch_handlers
from ..errors import EngineDeadError, EngineHungError, EngineRecoveringError, EngineStartError, failure_report, failure_text
from ..logs import logger
from ..status import own_status
from ..supervisor import ProcessInfo, Supervisor
from ..watch import EngineWatch
from .actor import Frontend
from .collector import RequestOutputCollector
from .core_client import CoreClient
from .input_processor import InputProcessor, Prompt, TokensPrompt
from .output_processor import OutputProcessor
from .outputs import RequestOutput
from .renderer import Renderer
from .stats import FrontendStats

SHUT_DOWN = "the engine was shut down"


class AsyncLLM:
    """An engine: its processes, started on first use or by `async with`, and the requests of this program.

    Made in any thread and before a loop runs; used from one event loop. The process that makes it supervises the engine:
    when it ends, however it ends, the engine's processes end too.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        """Nothing is started yet. `config` need not be resolved. Raises ValueError for a value of a wrong type or range."""
        self.config = check_config(config if config is not None else EngineConfig())
        self._host: TaskHost | None = None
        self._supervisor: Supervisor | None = None
        self._settled = asyncio.Event()  # the start has succeeded or failed
        self._ended = asyncio.Event()
        self._outputs = OutputProcessor()
        self._error: Exception | None = None  # why the engine takes no requests
        self._running = False
        self._stopping = False  # it ends by itself, and in order

    @classmethod
    def from_engine_args(cls, **options: Any) -> Self:
        """An engine from flat options as on the command line: `from_engine_args(model="smollm2", max_num_seqs=32)`.

        Raises ValueError for an unknown option or a value out of range.
        """
        return cls(engine_config(**options))

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

    async def _run(self) -> None:
        """The engine's life; cancelled by `shutdown`."""
        try:
            config = await run_abandonable(resolve_config, self.config)
            async with Supervisor(config) as supervisor:
                self._supervisor = supervisor
                on_hung = supervisor.replace_hung if config.runtime.max_restarts else None
                with (
                    own_status(supervisor.topology.statuses[0], "frontend0", "frontend") as self._status,
                    EngineWatch(supervisor.topology.boots(), config.runtime.hang_timeout, on_hung) as self._watch,
                ):
                    self._renderer = await asyncio.to_thread(Renderer, config.checkpoint)  # while the processes start
                    failure = await supervisor.wait_ready()
                    if failure is not None:
                        raise EngineStartError(failure_text(failure))
                    await self._serve(config, supervisor)
                self._stopping = True
        except (ValueError, EngineStartError) as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - whoever waits for the start must learn of it, whatever it is
            logger.exception("the engine failed")
            self._end(EngineStartError(f"{type(error).__name__}: {error}"))
        finally:
            self._end(EngineDeadError(SHUT_DOWN))

    def _end(self, error: Exception) -> None:
        """Take no more requests, and tell whoever waits why. The first reason stands."""
        self._running = False
        self._error = self._error or error
        self._settled.set()
        self._ended.set()

    async def _serve(self, config: EngineConfig, supervisor: Supervisor) -> None:
        """Serve requests until cancelled or until the engine cannot go on. Nobody is left waiting."""
        self.config = config
        topology = supervisor.topology
        debug = config.runtime.debug_actors
        watch = AskWatch("frontend0", self._status.asking, self._watch.asks_of) if debug else unwatched
        requests, outputs = topology.requests[0][0].duplicate(), topology.outputs[0][0].duplicate()
        self._client = CoreClient(requests, outputs, self._outputs.unfinished, watch=watch, debug=debug)
        frontend = Frontend(self._client, self._outputs, self._status, self._watch, config.scheduler)
        if debug:
            watch_handlers(frontend, "frontend0")
        self._inputs = InputProcessor(config, self._renderer, supervisor.ready_of("engine_core").num_blocks)
        self._running = True
        self._settled.set()
        self._status.state("ready")
        error = EngineDeadError(SHUT_DOWN)
        try:
            failure = await self._wait_failed(supervisor, frontend)
            error = EngineDeadError(failure_text(failure))
            logger.error("the engine died: %s", failure_report(failure))
        finally:
            self._end(error)
            self._outputs.fail_all(error)
            self._client.fail(error)
            self._client.close()

    async def _wait_failed(self, supervisor: Supervisor, frontend: Frontend) -> Failure:
        """Run the frontend's tasks until a process dies for good or one of them fails."""
        failure: Failure | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                bodies = (frontend.receive(), self._client.run(), self._watch.run())
                running = [tasks.create_task(body) for body in bodies]
                failure = await supervisor.run(frontend)
                for task in running:
                    task.cancel()
        except BaseExceptionGroup as group:  # a task failed, perhaps only because the process at its other end did
            failure = failure or describe_failure("frontend0", first_cause(group))
        assert failure is not None
        return failure

    async def add_request(
        self,
        request_id: str | None,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> RequestOutputCollector:
        """Send a request; its outputs come through the collector, whose `close` aborts it.

        With `scheduling_policy="priority"`, lower `priority` goes first. Prefixes are shared under an equal `cache_salt` only.
        Raises ValueError naming what is wrong with the request, EngineDeadError when the engine cannot serve. Cancelled or
        failed, it leaves no trace of the request. Several live requests may share one `request_id`.
        """
        await self.start()
        params = sampling_params if sampling_params is not None else SamplingParams()
        content = self._inputs.check(prompt, params)
        salt = self._inputs.check_sharing(priority, cache_salt)
        external_id = self._inputs.check_request_id(request_id)
        request = self._client.next_number()
        abandon = partial(self._abandon, request)
        collector = RequestOutputCollector(external_id, delta=params.output_kind == "delta", on_abandon=abandon)
        detokenizer = self._renderer.detokenizer(skip_special_tokens=params.skip_special_tokens)
        self._outputs.add(request, params, collector, detokenizer, content)
        try:
            message = await self._inputs.process(request, collector.request_id, content, params, priority, salt)
            if self._outputs.tokenized(request, message.prompt):
                await self._client.wait_open()
                if self._outputs.sending(message):
                    await self._client.tell(message)
        except BaseException as error:
            self._abandon(request, "error" if isinstance(error, Exception) else "abort")
            raise
        return collector

    async def check_request(self, prompt: Prompt, sampling_params: SamplingParams) -> TokensPrompt:
        """The prompt as token ids, when `add_request` would take it with these parameters; nothing is sent.

        Raises ValueError naming what is wrong with the request, EngineDeadError when the engine cannot serve.
        """
        await self.start()
        return await self._inputs.tokens_of(prompt, sampling_params)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answer to a prompt: text, token ids, or a dict of either; the rest is as with `add_request`.

        Each output is cumulative, a delta, or only the last, by `sampling_params.output_kind`; the last one says `finished`.
        Leaving the loop, closing the generator or cancelling the task aborts the request and frees what it holds. Raises
        what `add_request` raises, EngineGenerateError when this request fails in the engine, and EngineDeadError when the
        engine dies, each after the outputs that came before it.
        """
        collector = await self.add_request(request_id, prompt, sampling_params, priority=priority, cache_salt=cache_salt)
        try:
            finished = False
            while not finished:
                output = collector.get_nowait() or await collector.get()
                finished = output.finished
                yield output
        finally:
            collector.close()

    async def chat_prompt(self, messages: Sequence[dict[str, Any]]) -> TokensPrompt:
        """The prompt for a conversation, `[{"role": "user", "content": "Hi"}, ...]`, by the model's own chat template.

        Raises ValueError when the model has no template or the template refuses the messages.
        """
        await self.start()
        return {"prompt_token_ids": await self._renderer.encode_chat(messages)}

    def _abandon(self, request: int, reason: FinishReason = "abort") -> None:
        """Forget a request nobody waits for any more, here and in the core."""
        if self._outputs.discard(request, reason) and self._running:
            self._client.abort(request)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End every live request with one of these ids; its consumer gets a last output with finish reason "abort"."""
        for external_id in [request_id] if isinstance(request_id, str) else request_id:
            for request in self._outputs.requests_of(external_id):
                self._outputs.abort(request)
                self._client.abort(request)

    async def describe(self) -> EngineDescription:
        """Numbers of the core right now: requests running and waiting, blocks in all and free.

        Raises EngineDeadError when the engine is dead, NoAnswerError when the core does not answer within `hang_timeout`.
        """
        await self.start()
        reply = await self._client.ask(DescribeEngine, self.config.runtime.hang_timeout)
        assert reply.description is not None
        return reply.description

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> None:
        """Empty the prefix cache; with `reset_running_requests`, compute running ones again. Raises what `describe` raises."""
        await self.start()
        call = partial(ResetPrefixCache, preempt_running=bool(reset_running_requests))
        await self._client.ask(call, self.config.runtime.hang_timeout)

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
        """Live requests of this program."""
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

        Consumers of live requests get a last output with finish reason "abort". A second call does nothing; the engine cannot
        be started again.
        """
        self._end(EngineDeadError(SHUT_DOWN))
        for request in self._outputs.live():
            self._outputs.abort(request)
        if self._host is not None and not self._stopping:
            self._host.cancel()
        if self._host is not None:
            await self._host.wait()
