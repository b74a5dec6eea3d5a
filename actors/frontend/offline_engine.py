"""OfflineEngine: the frontend of an engine in a thread that blocks, with or without an event loop running there."""

import os
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ...ipc.blocking import BlockingLoop
from ...ipc.doorbell import Doorbell, create_doorbell, ring_doorbell
from ...ipc.errors import MailboxError
from ...ipc.messages.config import EngineConfig
from ...ipc.messages.outputs import UtilityReply
from ...ipc.messages.requests import AddRequest, RequestMessage
from ...ipc.messages.sampling import SamplingParams
from ...ipc.parking import Parkable, Signal, wait_any
from ..config import resolve_config
from ..debug import watch_handlers
from ..errors import copy_of
from ..recovery import Recovery
from ..supervisor import ProcessInfo
from .actor import Frontend
from .controls import EngineControls
from .core_client import CoreClient
from .engine_thread import EngineThread, WorksAgain
from .input_processor import InputProcessor, Prompt, TokensPrompt
from .interrupts import Interrupts
from .live_request import LiveRequest
from .output_processor import OutputProcessor
from .renderer import Renderer
from .submission import Submission, Submitter

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that has passed every check, and has not been sent."""

    submission: Submission
    message: AddRequest


class OfflineEngine(EngineControls):
    """Its coroutines await mailboxes alone, and go through `run`. The mailboxes, the requests and their texts are those of the
    thread that calls it; the processes are supervised by a thread of their own, which tells what happens to them.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Start the engine and wait until it can work. `config` need not be resolved.

        Raises ValueError for an option or a model that cannot be used, EngineStartError with the reason of a failed process.
        """
        if config.runtime.single_process:
            raise ValueError("single_process must be False for an engine that blocks: its actors could not run meanwhile")
        self.config = resolve_config(config)
        self._pid = os.getpid()
        self._started = False
        self._error: Exception | None = None  # why the engine takes no requests
        self._turn = threading.RLock()
        self._loop = BlockingLoop()
        self._nudge = Signal()  # ends a wait
        self._news: dict[LiveRequest, Submission] = {}  # requests that have something to get
        self._closing = ExitStack()
        self.outputs = OutputProcessor()
        self._bell_fd = create_doorbell()
        self._bell = Doorbell(self._bell_fd, self._rung)
        self._closing.callback(self._bell.close)
        self._interrupts = Interrupts(self._ring)
        self._thread = EngineThread(self.config, self._bell_fd)
        try:
            self._set_up()
        except BaseException:
            self._stop()
            raise

    def _set_up(self) -> None:
        skip = self.config.model.skip_tokenizer_init
        self._renderer = Renderer(self.config.checkpoint, skip_tokenizer_init=skip)  # while the processes start
        frontage = self._thread.wait_ready()
        debug = self.config.runtime.debug_actors
        try:
            self._client = CoreClient(
                frontage.requests,
                frontage.outputs,
                lambda: self._for_successor(self._client, self.outputs),
                wait=self._wait_answer,
                debug=debug,
            )
        except BaseException:  # which has closed its mailboxes
            frontage.posting.close()
            raise
        self._closing.push(frontage.posting)
        self._closing.callback(self._client.close)
        self._frontend = Frontend(self._client, self.outputs, frontage.status, None, self.config.scheduler)
        if debug:
            watch_handlers(self._frontend, "frontend0")
        self._inputs = InputProcessor(self.config, self._renderer, frontage.num_blocks)
        self._submitter = Submitter(
            self.config, self._renderer, self._inputs, self.outputs, self._client.next_number, self._client.abort
        )
        frontage.status.state("ready")
        self._started = True

    def run(self, coroutine: Coroutine[Any, Any, R], undo: Callable[[], None] = lambda: None) -> R:
        """Run a coroutine of this engine to its end. One at a time: another thread's waits.

        Raises KeyboardInterrupt where the coroutine waits, or at its end, when its result is lost. However it fails, `undo` is
        called then, before another thread's turn.
        """
        try:
            if os.getpid() != self._pid:
                raise RuntimeError(f"the engine belongs to process {self._pid}: a fork of that cannot use it")
            with self._turn:
                try:
                    with self._interrupts.held():
                        return self._loop.run(self._attentive(coroutine))
                except BaseException:
                    undo()
                    raise
        finally:
            coroutine.close()

    async def _attentive(self, coroutine: Coroutine[Any, Any, R]) -> R:
        if self._error is None:
            self._bell.listen()
            self._take_events()
        return await coroutine

    def _require_alive(self) -> None:
        if self._error is not None:
            raise copy_of(self._error)

    async def prepare(
        self, request_id: str | None, prompt: Prompt, params: SamplingParams, priority: int = 0, cache_salt: str | None = None
    ) -> Prepared:
        """Check a request and register it; nothing is sent. ValueError naming what is wrong with it: nothing has happened.

        Raises EngineDeadError when the engine has died for good.
        """
        self._interrupts.check()
        self._require_alive()
        submission = self._submitter.register(request_id, prompt, params, priority, cache_salt)
        try:
            message = self._submitter.message(submission, await self._inputs.encode(submission.content))
        except BaseException:
            self._forget(submission)
            raise
        assert message is not None
        submission.collector.on_news = partial(self._news.__setitem__, submission.live, submission)
        return Prepared(submission, message)

    def _forget(self, submission: Submission) -> None:
        self.outputs.abandon(submission.live, None)

    def discard(self, prepared: Iterable[Prepared]) -> None:
        """Forget requests that were not sent."""
        for one in prepared:
            self._forget(one.submission)

    async def chat_prompt(self, messages: Sequence[dict[str, Any]]) -> TokensPrompt:
        """The prompt for a conversation, by the model's chat template. ValueError where that is not possible."""
        return {"prompt_token_ids": await self._renderer.encode_chat(messages)}

    async def get_tokenizer(self) -> Any:
        """The model's tokenizer as transformers has it. ValueError where there is none."""
        return await self._renderer.get_tokenizer()

    def process_table(self) -> list[ProcessInfo]:
        """The engine's processes; none when it has ended."""
        return self._thread.process_table()

    async def send(self, prepared: Prepared) -> None:
        """Send a request, waiting for room. Raises EngineDeadError when the engine has died for good."""
        self._interrupts.check()
        self._require_alive()
        await self._client.wait_open()
        if self.outputs.sending(prepared.submission.live, prepared.message):
            await self._client.tell(prepared.message)

    async def news(self, wanted: Collection[LiveRequest]) -> list[Submission]:
        """Wait until some of the requests in `wanted` have something to get, and return them; none when nothing is wanted.

        Raises EngineDeadError when the engine has died for good, and there is nothing to get.
        """
        while not (found := [live for live in self._news if live in wanted]) and wanted:
            await self._wait()
        return [self._news.pop(live) for live in found]

    def leave(self, submission: Submission) -> None:
        """Nobody wants a request's outputs any more: it is aborted if it has not ended."""
        submission.collector.on_news = None
        submission.collector.close()
        self._news.pop(submission.live, None)

    def end_wait(self) -> None:
        """Have `news` look again what is wanted, should this be called while it waits: by the handler of a signal."""
        self._ring()

    async def _wait_answer(self, settled: Sequence[Parkable]) -> None:
        await self._wait()

    async def _wait(self) -> None:
        """Take what the core has sent; if there is nothing, wait until there may be something."""
        self._interrupts.check()
        self._require_alive()
        self._nudge.clear()
        try:
            await self._client.catch_up()
            if not self._frontend.take_waiting():
                await self._client.wait_news(self._nudge)
        except MailboxError:  # the core's end is there: its supervisor will tell that it was the engine's
            await wait_any([self._nudge])

    def _ring(self) -> None:
        if self._bell_fd >= 0:
            ring_doorbell(self._bell_fd)

    def _rung(self) -> None:
        """Called while a coroutine waits, for whatever it does. Ctrl-C ends the wait by an error."""
        self._take_events()
        self._nudge.set()
        self._interrupts.check()

    def _take_events(self) -> None:
        while (event := self._thread.take_event()) is not None:
            if isinstance(event, Recovery):
                with suppress(MailboxError):  # another event, of the engine's end, waits behind it
                    self._frontend.died(event)
            elif isinstance(event, WorksAgain):
                self._frontend.works_again(event.seconds)
            else:
                self._end(event.error)

    def _end(self, error: Exception) -> None:
        """Take no more requests, and tell whoever waits why. The first reason stands."""
        if self._error is None:
            self._error = error
            self.outputs.fail_all(error)
            self._client.fail(error)
            self._client.close()

    async def _ask(self, call: Callable[[int], RequestMessage], seconds: float | None = None) -> UtilityReply:
        self._interrupts.check()
        self._require_alive()
        return await self._client.ask(call, self.config.runtime.hang_timeout if seconds is None else seconds)

    def shutdown(self) -> None:
        """Stop the engine's processes and wait until they have ended. Requests end with finish reason "abort".

        A second call does nothing. From another thread than the one that waits in `run`, it ends that wait by an error.
        """
        if os.getpid() != self._pid:  # a fork: the processes are not its own
            return
        if self._turn.acquire(blocking=False):
            try:
                if self._error is None:
                    for live in self.outputs.live():
                        self.outputs.abort(live)
            finally:
                self._turn.release()
        self._stop()

    def _stop(self) -> None:
        try:
            ended = self._thread.stop()
        finally:
            with self._turn:
                if self._started:
                    self._take_events()
                self._closing.close()
        if ended and self._bell_fd >= 0:
            bell, self._bell_fd = self._bell_fd, -1
            os.close(bell)
