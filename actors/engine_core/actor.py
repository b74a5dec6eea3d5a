"""The engine core actor: takes everything that waits in its mailboxes, then makes one step; with nothing to do it parks."""

import os
import time
from collections.abc import Callable, Sequence

from ...ipc.errors import EndOfStream, WouldBlock
from ...ipc.lanes import LaneReceiver
from ...ipc.messages.control import Drain, Reattach, Stop, ToActor
from ...ipc.messages.failure import Failure
from ...ipc.messages.load import LoadStats
from ...ipc.messages.outputs import EngineDescription, TokenDelta, UtilityReply
from ...ipc.messages.requests import (
    FRONTEND_SHIFT,
    Abort,
    AddRequest,
    AppendInput,
    CloseInput,
    DescribeEngine,
    Fork,
    PauseGeneration,
    RequestMessage,
    ResetPrefixCache,
    Resume,
    ResumeGeneration,
    Truncate,
)
from ...ipc.messages.results import CallResult, ResultMessage, StepResult, WorkerReady
from ...ipc.parking import Parkable
from ...ipc.waiting import Adaptive
from ...sched.interface import SchedulerInterface
from ..base import Actor, handles
from ..boot import describe_failure
from ..errors import AT_FAULT, EngineGenerateError, deadly_text, failure_report, failure_text
from ..logs import logger
from ..status import StatusBlock, message_name
from .executor import Executor
from .output_port import OutputPort
from .pausing import Pausing, members_of
from .request_port import RequestPort
from .stamps import Stamps


class EngineCore(Actor, receives=(RequestMessage, ResultMessage, ToActor)):
    """Owns the scheduler. A failure of one request is told to its frontend; any other exception ends the process."""

    def __init__(
        self,
        actor: str,
        scheduler: SchedulerInterface,
        executor: Executor,
        requests: Sequence[RequestPort],
        outputs: Sequence[OutputPort],
        control: LaneReceiver[ToActor],
        status: StatusBlock,
        number: int = 0,
        on_epoch: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`number` is its own among the cores; `on_epoch` learns of each that begins after this. Posts how busy it is, now and
        after each step.
        """
        self._actor = actor
        self._scheduler = scheduler
        self._executor = executor
        self._requests = dict(enumerate(requests))  # by frontend
        self._live: list[set[int]] = [set() for _ in requests]  # unfinished requests, by frontend
        self._outputs = outputs
        self._control = control
        self._status = status
        self._number = number
        self._epoch = executor.epoch  # the last one that has begun
        self._on_epoch = on_epoch
        self._finished = 0  # steps since the status was posted
        self._stamps = Stamps()
        self._pausing = Pausing(scheduler)
        self._steps = 0
        self._draining = False
        self._stopping = False
        self._waiting = Adaptive()
        self._post_load()

    async def run(self) -> None:
        """Serve until Stop."""
        while not self._stopping:
            self._take_messages()
            planned = await self._plan_step()
            for reply in self._pausing.settled():
                self._reply(reply)
            if planned or self._status.now.message:
                self._post_load()  # before the outputs: whoever has the last one of a request finds it gone
            resumed = self._flush()
            if not (planned or resumed or self._stopping):
                await self._waiting.wait(self._ends())
        self._status.state("stopping")
        await self._executor.stop()

    def _flush(self) -> bool:
        """Send what there is room for. Requests whose frontend does not keep up are parked; True when some can go on again, or
        there is more to send.
        """
        resumed = False
        for port in self._outputs:
            flow = port.flush(self._steps)
            for request in flow.overfull:
                self._scheduler.park(request)
            for request in flow.drained:
                resumed |= self._scheduler.unpark(request)
            for request in flow.too_large:
                self._scheduler.abort(request)
                said = "the logprobs of one token fit into no message: ask for fewer, or raise mailbox_bytes"
                self._tell_failed(Failure(self._actor, os.getpid(), "LogprobsTooLarge", said, request=request))
                resumed = True
        return resumed

    def _post_load(self) -> None:
        stats = self._scheduler.stats()
        used = stats.num_blocks - stats.free_blocks
        load = LoadStats(
            self._number,
            stats.running,
            stats.waiting + self._pausing.num_held,
            used,
            stats.num_blocks,
            stats.preemptions,
            stats.prefix_queries,
            stats.prefix_hits,
        )
        self._status.done(self._finished, load)
        self._finished = 0

    def _take_messages(self) -> None:
        for result in self._executor.results():
            self._take(result)
        self._take_orders()
        for frontend, port in list(self._requests.items()):
            for message in port.messages():
                self._take(message)
            if port.ended:
                self._forget_frontend(frontend)
        if not self._requests:  # nobody is left to serve
            self._stopping = True

    def _forget_frontend(self, frontend: int) -> None:
        """It has left or died: nobody waits for its requests any more."""
        del self._requests[frontend]
        self._pausing.drop(self._live[frontend])
        for request in self._live[frontend]:
            self._scheduler.abort(request)
            self._stamps.forget(request)
        self._live[frontend].clear()

    def _take(self, message: object) -> None:
        self._status.taking(message_name(message))
        self.dispatch(message)

    def _take_orders(self) -> None:
        """Take what the supervisor said. A supervisor that closed the line has no more use for this core."""
        try:
            while True:
                self._take(self._control.receive_nowait())
        except WouldBlock:
            pass
        except EndOfStream:
            self._stopping = True

    async def _plan_step(self) -> bool:
        """Plan and send a step; False when there is nothing to compute or enough is in flight."""
        if not (self._executor.ready and self._pausing.may_plan):
            return False
        if self._epoch != self._executor.epoch:
            self._epoch = self._executor.epoch
            self._on_epoch(self._epoch)
        self._status.alone(self._scheduler.alone)  # before it is touched: planning it may be what the core dies of
        plan = self._scheduler.schedule()
        if plan is None:
            return False
        self._stamps.planned(plan, time.monotonic())
        self._pausing.planned()
        await self._executor.submit(plan)
        return True

    def _ends(self) -> list[Parkable]:
        ends: list[Parkable] = [self._control, *(port.end for port in self._requests.values()), *self._executor.ends()]
        for port in self._outputs:
            ends += port.ends()
        return ends

    def _port(self, request: int) -> OutputPort:
        return self._outputs[request >> FRONTEND_SHIFT]

    @handles(StepResult)
    def _on_step_result(self, result: StepResult) -> None:
        self._steps = result.step
        self._finished += 1
        update = self._scheduler.update(result)
        self._pausing.finished()
        self._status.alone(None)
        for delta in update.deltas:
            if delta.finish_reason != "error":  # told by its Failure below
                self._put_delta(self._stamps.put_on(delta))
        for failed in update.failures:
            row = failed.failure
            self._fail(Failure(self._actor, os.getpid(), row.kind, row.message, row.traceback, failed.request))

    def _put_delta(self, delta: TokenDelta) -> None:
        if delta.finish_reason is not None:
            self._forget(delta.request)
        self._port(delta.request).put_deltas([delta])

    def _forget(self, request: int) -> None:
        """A request has ended."""
        self._live[request >> FRONTEND_SHIFT].discard(request)
        self._stamps.forget(request)

    def handler_failed(self, message: object, error: Exception) -> None:
        """A failure about one request or call is told to whoever sent it, and the others go on; any other is the core's end."""
        if isinstance(message, ResetPrefixCache | DescribeEngine | PauseGeneration | ResumeGeneration):
            failure = describe_failure(self._actor, error)
            logger.error("%s", failure_report(failure))
            self._reply(UtilityReply(message.call, ok=False, message=failure_text(failure)))
        elif isinstance(message, AddRequest | Abort | AppendInput | CloseInput | Truncate | Fork):
            for request in members_of(message) if isinstance(message, AddRequest) else (message.request,):
                self._scheduler.abort(request)  # however far it had come
                self._forget(request)
            self._fail(describe_failure(self._actor, error, message.request))
        else:
            super().handler_failed(message, error)

    def _fail(self, failure: Failure) -> None:
        """A request has ended by a fault of ours, or by what it asks for."""
        if failure.kind in AT_FAULT:
            logger.info("%s", failure_text(failure))
        else:
            logger.error("%s", failure_report(failure))
        self._tell_failed(failure)

    def _tell_failed(self, failure: Failure) -> None:
        assert failure.request is not None
        self._forget(failure.request)
        self._port(failure.request).put(failure)

    @handles(AddRequest)
    def _on_add(self, request: AddRequest) -> None:
        try:
            if self._draining:
                raise EngineGenerateError("the engine is shutting down and takes no new requests")
            self._add(request)
        except (ValueError, EngineGenerateError) as error:
            kind = type(error).__name__
            for member in members_of(request):
                self._forget(member)
            self._tell_failed(Failure(self._actor, os.getpid(), kind, str(error), request=request.request))

    def _add(self, request: AddRequest) -> None:
        members = members_of(request)
        self._live[request.request >> FRONTEND_SHIFT].update(members)
        self._stamps.queued(members[1:] if request.output else members, time.monotonic())
        if self._pausing.paused:
            self._pausing.hold(request)
            return
        ended = self._scheduler.add(request)
        if ended is not None:  # what it was resumed with already was its whole answer
            self._put_delta(ended)

    @handles(Abort)
    def _on_abort(self, abort: Abort) -> None:
        self._scheduler.abort(abort.request)
        self._pausing.drop({abort.request})
        self._forget(abort.request)
        self._port(abort.request).forget(abort.request)

    @handles(AppendInput, CloseInput, Truncate, Fork)
    def _on_session(self, message: AppendInput | CloseInput | Truncate | Fork) -> None:
        error = NotImplementedError(f"{type(message).__name__}: this engine core has no sessions")
        self._port(message.request).put(describe_failure(self._actor, error, message.request))

    @handles(ResetPrefixCache)
    def _on_reset_prefix_cache(self, call: ResetPrefixCache) -> None:
        self._scheduler.reset_prefix_cache(preempt_running=call.preempt_running)
        self._reply(UtilityReply(call.call))

    @handles(DescribeEngine)
    def _on_describe(self, call: DescribeEngine) -> None:
        stats = self._scheduler.stats()
        blocks = (stats.num_blocks, stats.free_blocks)
        waiting = stats.waiting + self._pausing.num_held
        description = EngineDescription(stats.running, waiting, *blocks, stats.steps, stats.parked, self._pausing.paused)
        self._reply(UtilityReply(call.call, description=description))

    @handles(PauseGeneration)
    def _on_pause(self, call: PauseGeneration) -> None:
        if self._draining:
            self._reply(UtilityReply(call.call, ok=False, message="the engine is shutting down and cannot be paused"))
            return
        for delta in self._pausing.pause(call):
            self._put_delta(delta)

    @handles(ResumeGeneration)
    def _on_resume_generation(self, call: ResumeGeneration) -> None:
        self._go_on()
        self._reply(UtilityReply(call.call))

    def _go_on(self) -> None:
        """Be paused no more."""
        replies, held = self._pausing.resume()
        for reply in replies:
            self._reply(reply)
        for request in held:
            self.dispatch(request)

    def _reply(self, reply: UtilityReply) -> None:
        self._outputs[reply.call >> FRONTEND_SHIFT].put(reply)

    @handles(Resume)
    def _on_resume(self, resume: Resume) -> None:
        logger.debug("resumed at epoch %d", resume.epoch)

    @handles(WorkerReady, CallResult)
    def _on_late_answer(self, message: WorkerReady | CallResult) -> None:
        raise AssertionError(f"nobody asked for {message}")

    @handles(Stop)
    def _on_stop(self, _: Stop) -> None:
        self._stopping = True

    @handles(Drain)
    def _on_drain(self, _: Drain) -> None:
        if not self._draining:
            self._go_on()  # what it has taken, it finishes
            self._draining = True
            self._status.state("draining")

    @handles(Reattach)
    def _on_reattach(self, message: Reattach) -> None:
        """Its workers were replaced: what they had in hand is computed again, but for what has killed them too often."""
        if message.epoch <= self._executor.epoch:
            return
        for result in self._executor.results():  # published before they died
            self.dispatch(result)
        self._executor.begin(message.epoch)
        self._pausing.lost()
        for request in self._scheduler.restart():
            self._fail(Failure(self._actor, os.getpid(), "DeadlyRequest", deadly_text(message.reason), request=request))
        self._status.alone(None)
