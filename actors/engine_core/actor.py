"""The engine core actor: takes everything that waits in its mailboxes, then makes one step; with nothing to do it parks."""

import gc
import os
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ...ipc.errors import EndOfStream, WouldBlock
from ...ipc.mailbox import Receiver, Sender
from ...ipc.messages.control import ActorReady, Drain, Reattach, Stop, ToActor
from ...ipc.messages.failure import Failure
from ...ipc.messages.outputs import EngineDescription, OutputMessage, TokenDelta, UtilityReply
from ...ipc.messages.requests import (
    FRONTEND_SHIFT,
    Abort,
    AddRequest,
    AppendInput,
    CloseInput,
    DescribeEngine,
    Fork,
    RequestMessage,
    ResetPrefixCache,
    Resume,
    Truncate,
)
from ...ipc.messages.results import CallResult, ResultMessage, StepResult, WorkerReady
from ...ipc.parking import Parkable, wait_any
from ...sched.scheduler import Scheduler
from ..base import Actor, handles
from ..boot import Boot, Control, describe_failure
from ..errors import ActorFailed, EngineGenerateError, failure_text
from ..logs import logger
from .executor import Executor, MailboxExecutor
from .output_port import OutputPort


class EngineCore(Actor, receives=(RequestMessage, ResultMessage, ToActor)):
    """Owns the scheduler. A failure of one request is told to its frontend; any other exception ends the process."""

    def __init__(
        self,
        actor: str,
        scheduler: Scheduler,
        executor: Executor,
        requests: Sequence[Receiver[RequestMessage]],
        outputs: Sequence[OutputPort],
        control: Receiver[ToActor],
    ) -> None:
        self._actor = actor
        self._scheduler = scheduler
        self._executor = executor
        self._requests = requests
        self._outputs = outputs
        self._control = control
        self._scheduled: dict[int, float] = {}  # when a request first entered a plan, until its first token goes out
        self._steps = 0
        self._draining = False
        self._stopping = False

    async def run(self) -> None:
        """Serve until Stop."""
        while not self._stopping:
            self._take_messages()
            planned = await self._plan_step()
            for port in self._outputs:
                port.flush(self._steps)
            if not planned and not self._stopping:
                await wait_any(self._ends())
        await self._executor.stop()

    def _take_messages(self) -> None:
        for message in self._executor.results():
            self.dispatch(message)
        supervised = self._drain(self._control)
        self._requests = [receiver for receiver in self._requests if self._drain(receiver)]
        if not supervised or not self._requests:  # nobody is left to serve
            self._stopping = True

    def _drain(self, receiver: Receiver[Any]) -> bool:
        """Take everything that waits in a mailbox; False when its writer closed it and nothing more will come."""
        try:
            while True:
                self.dispatch(receiver.receive_nowait())
        except WouldBlock:
            return True
        except EndOfStream:
            return False

    async def _plan_step(self) -> bool:
        """Plan and send a step; False when there is nothing to compute or enough is in flight."""
        plan = self._scheduler.schedule()
        if plan is None:
            return False
        now = time.monotonic()
        for row in plan.new:
            self._scheduled.setdefault(row.request, now)
        await self._executor.submit(plan)
        return True

    def _ends(self) -> list[Parkable]:
        ends: list[Parkable] = [self._control, *self._requests, *self._executor.ends()]
        for port in self._outputs:
            ends += port.ends()
        return ends

    def _port(self, request: int) -> OutputPort:
        return self._outputs[request >> FRONTEND_SHIFT]

    @handles(StepResult)
    def _on_step_result(self, result: StepResult) -> None:
        self._steps = result.step
        update = self._scheduler.update(result)
        for delta in update.deltas:
            if delta.finish_reason != "error":  # told by its Failure below
                self._port(delta.request).put_deltas([self._stamp(delta)])
        for failed in update.failures:
            failure = self._request_failed(failed.request, failed.failure.kind, failed.failure.message)
            logger.error("%s\n%s", failure_text(failure), failed.failure.traceback)
            self._port(failed.request).put(failure)

    def _stamp(self, delta: TokenDelta) -> TokenDelta:
        scheduled = self._scheduled.pop(delta.request, None)
        return delta if scheduled is None else msgspec.structs.replace(delta, scheduled=scheduled)

    def _request_failed(self, request: int, kind: str, message: str) -> Failure:
        self._scheduled.pop(request, None)
        return Failure(self._actor, os.getpid(), kind, message, request=request)

    @handles(AddRequest)
    def _on_add(self, request: AddRequest) -> None:
        try:
            if self._draining:
                raise EngineGenerateError("the engine is shutting down and takes no new requests")
            ended = self._scheduler.add(request)
        except (ValueError, EngineGenerateError) as error:
            failure = self._request_failed(request.request, type(error).__name__, str(error))
            self._port(request.request).put(failure)
        else:
            if ended is not None:  # what it was resumed with already was its whole answer
                self._port(request.request).put_deltas([ended])

    @handles(Abort)
    def _on_abort(self, abort: Abort) -> None:
        self._scheduler.abort(abort.request)
        self._scheduled.pop(abort.request, None)

    @handles(AppendInput, CloseInput, Truncate, Fork)
    def _on_session(self, message: AppendInput | CloseInput | Truncate | Fork) -> None:
        error = NotImplementedError(f"{type(message).__name__}: this engine core has no sessions")
        self._port(message.request).put(describe_failure(self._actor, error, message.request))

    @handles(ResetPrefixCache)
    def _on_reset_prefix_cache(self, call: ResetPrefixCache) -> None:
        self._reply(UtilityReply(call.call))  # nothing is cached beyond a request's life

    @handles(DescribeEngine)
    def _on_describe(self, call: DescribeEngine) -> None:
        stats = self._scheduler.stats()
        description = EngineDescription(stats.running, stats.waiting, stats.num_blocks, stats.free_blocks, stats.steps)
        self._reply(UtilityReply(call.call, description=description))

    def _reply(self, reply: UtilityReply) -> None:
        self._outputs[reply.call >> FRONTEND_SHIFT].put(reply)

    @handles(Resume)
    def _on_resume(self, resume: Resume) -> None:
        logger.debug("resumed at epoch %d", resume.epoch)

    @handles(Failure)
    def _on_worker_failure(self, failure: Failure) -> None:
        raise ActorFailed(failure)

    @handles(WorkerReady, CallResult)
    def _on_late_answer(self, message: WorkerReady | CallResult) -> None:
        raise AssertionError(f"nobody asked for {message}")

    @handles(Stop)
    def _on_stop(self, _: Stop) -> None:
        self._stopping = True

    @handles(Drain)
    def _on_drain(self, _: Drain) -> None:
        self._draining = True

    @handles(Reattach)
    def _on_reattach(self, message: Reattach) -> None:
        raise AssertionError(f"{message.peer} was restarted, and this core cannot go on without its state")


async def main(boot: Boot, control: Control) -> None:
    """Body of the engine core process."""
    started = time.monotonic()
    config = boot.config
    assert boot.plans is not None
    executor = MailboxExecutor(boot.plans, boot.results)
    requests = [Receiver[RequestMessage](handle, RequestMessage) for handle in boot.requests]
    outputs = [OutputPort(Sender[OutputMessage](handle, OutputMessage)) for handle in boot.outputs]
    num_blocks = await executor.start()
    max_model_len = config.checkpoint.max_model_len
    scheduler = Scheduler(config.scheduler, config.cache, num_blocks=num_blocks, max_model_len=max_model_len)
    core = EngineCore(boot.actor, scheduler, executor, requests, outputs, control.receiver)
    gc.collect()
    gc.freeze()  # what start-up made lives for good; later collections need not look at it
    waited = time.monotonic() - started
    control.sender.send_nowait(ActorReady(boot.actor, num_blocks, {"wait for workers": waited}))
    await core.run()
