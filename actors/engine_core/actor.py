"""The engine core actor: takes everything that waits in its mailboxes, then makes one step; with nothing to do it parks."""

import os
import time
from collections.abc import Callable, Sequence

from ...ipc.errors import EndOfStream, WouldBlock
from ...ipc.lanes import LaneReceiver
from ...ipc.messages.control import Drain, Reattach, Stop, ToActor
from ...ipc.messages.failure import Failure
from ...ipc.messages.outputs import UtilityReply
from ...ipc.messages.requests import (
    FRONTEND_SHIFT,
    Abort,
    AddRequest,
    CloseSession,
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
from ...model_runner.phases import PhaseClock
from ...sched.errors import SessionMismatch
from ...sched.interface import SchedulerInterface
from ..base import Actor, handles
from ..boot import describe_failure
from ..errors import AT_FAULT, EngineGenerateError, deadly_text, failure_report, failure_text
from ..logs import logger
from ..status import StatusBlock, message_name
from .describing import Describing
from .executor import Executor
from .frontends import Frontends
from .numbers import description_of, load_of
from .output_port import OutputPort
from .pausing import Pausing, members_of
from .request_port import RequestPort


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
        self._frontends = Frontends(outputs)
        self._control = control
        self._status = status
        self._number = number
        self._epoch = executor.epoch  # the last one that has begun
        self._on_epoch = on_epoch
        self._finished = 0  # steps since the status was posted
        self._pausing = Pausing(scheduler)
        self._clock = PhaseClock("update", "messages", "plan", "submit", "beside", "wait", "idle")
        self._describing = Describing(executor, lambda: description_of(scheduler.stats(), self._pausing, self._clock.seconds))
        self._steps = 0
        self._draining = False
        self._stopping = False
        self._waiting = Adaptive()
        self._post_load()

    async def run(self) -> None:
        """Serve until Stop."""
        while not self._stopping:
            self._take_messages()
            self._clock.mark("beside" if self._pausing.in_flight else "messages")
            planned = await self._plan_step()
            self._frontends.reply(*self._pausing.settled())
            if planned or self._status.now.message:
                self._post_load()  # before the outputs: whoever has the last one of a request finds it gone
            resumed = self._flush()
            self._clock.mark("beside" if self._pausing.in_flight else "messages")
            if not (planned or resumed or self._stopping):
                await self._waiting.wait(self._ends())
                self._clock.mark("wait" if self._pausing.in_flight else "idle")
        self._status.state("stopping")
        await self._executor.stop()

    def _flush(self) -> bool:
        """Send what there is room for. Requests whose frontend does not keep up are parked; True when some can go on again, or
        there is more to send.
        """
        resumed = False
        for port in self._frontends.outputs:
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
        self._status.done(self._finished, load_of(self._number, self._scheduler.stats(), self._pausing))
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
        """It has left or died: nobody waits for its requests any more, and its sessions go on no more."""
        del self._requests[frontend]
        live = list(self._frontends.live[frontend])
        self._pausing.drop(live)
        for request in live:
            self._scheduler.abort(request)
            self._frontends.forget(request)
        for session in self._scheduler.open_sessions():
            if session >> FRONTEND_SHIFT == frontend:
                self._scheduler.close_session(session)

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
        self._clock.mark("plan")
        self._frontends.stamps.planned(plan, time.monotonic())
        self._pausing.planned()
        await self._executor.submit(plan)
        self._clock.mark("submit")
        return True

    def _ends(self) -> list[Parkable]:
        ends: list[Parkable] = [self._control, *(port.end for port in self._requests.values()), *self._executor.ends()]
        for port in self._frontends.outputs:
            ends += port.ends()
        return ends

    @handles(StepResult)
    def _on_step_result(self, result: StepResult) -> None:
        self._steps = result.step
        self._finished += 1
        self._clock.mark("wait")  # to receive it is the end of it
        update = self._scheduler.update(result)
        self._pausing.finished()
        self._status.alone(None)
        frontends = self._frontends
        for delta in update.deltas:
            if delta.finish_reason != "error":  # told by its Failure below
                frontends.put_delta(frontends.stamps.put_on(delta))
        for failed in update.failures:
            row = failed.failure
            self._fail(Failure(self._actor, os.getpid(), row.kind, row.message, row.traceback, failed.request))
        self._clock.mark("update")

    def handler_failed(self, message: object, error: Exception) -> None:
        """A failure about one request or call is told to whoever sent it, and the others go on; any other is the core's end."""
        if isinstance(message, ResetPrefixCache | DescribeEngine | PauseGeneration | ResumeGeneration):
            failure = describe_failure(self._actor, error)
            logger.error("%s", failure_report(failure))
            self._frontends.reply(UtilityReply(message.call, ok=False, message=failure_text(failure)))
        elif isinstance(message, AddRequest | Abort):
            for request in members_of(message) if isinstance(message, AddRequest) else (message.request,):
                self._scheduler.abort(request)  # however far it had come
                self._frontends.forget(request)
            self._fail(describe_failure(self._actor, error, message.request))
        elif isinstance(message, Truncate | Fork):  # the session's next turn fails, if it needs what is not there
            logger.error("%s", failure_report(describe_failure(self._actor, error)))
            if not isinstance(error, SessionMismatch):  # it may have been changed by half
                self._close_session(message.child if isinstance(message, Fork) else message.session)
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
        self._frontends.put_failure(failure.request, failure)

    @handles(AddRequest)
    def _on_add(self, request: AddRequest) -> None:
        try:
            if self._draining:
                raise EngineGenerateError("the engine is shutting down and takes no new requests")
            self._add(request)
        except (ValueError, EngineGenerateError) as error:
            kind = type(error).__name__
            for member in members_of(request):
                self._frontends.forget(member)
            self._tell_failed(Failure(self._actor, os.getpid(), kind, str(error), request=request.request))

    def _add(self, request: AddRequest) -> None:
        members = members_of(request)
        self._frontends.expect(members)
        self._frontends.stamps.queued(members[1:] if request.output else members, time.monotonic())
        if self._pausing.paused:
            self._pausing.hold(request)
            return
        ended = self._scheduler.add(request)
        if ended is not None:  # what it was resumed with already was its whole answer
            self._frontends.put_delta(ended)

    @handles(Abort)
    def _on_abort(self, abort: Abort) -> None:
        self._scheduler.abort(abort.request)
        self._pausing.drop({abort.request})
        self._frontends.hush(abort.request)

    @handles(Truncate)
    def _on_truncate(self, message: Truncate) -> None:
        self._scheduler.truncate_session(message.session, message.length)

    @handles(Fork)
    def _on_fork(self, message: Fork) -> None:
        self._scheduler.fork_session(message.session, message.child, message.length)

    @handles(CloseSession)
    def _on_close_session(self, message: CloseSession) -> None:
        self._close_session(message.session)

    def _close_session(self, session: int) -> None:
        turn = self._scheduler.close_session(session)
        for request in (*self._pausing.drop_turns(session), *([] if turn is None else [turn])):
            self._frontends.hush(request)

    @handles(ResetPrefixCache)
    def _on_reset_prefix_cache(self, call: ResetPrefixCache) -> None:
        self._scheduler.reset_prefix_cache(preempt_running=call.preempt_running)
        self._frontends.reply(UtilityReply(call.call))

    @handles(DescribeEngine)
    def _on_describe(self, call: DescribeEngine) -> None:
        self._frontends.reply(*self._describing.asked(call))

    @handles(CallResult)
    def _on_call_result(self, result: CallResult) -> None:
        self._frontends.reply(*self._describing.told(result))

    @handles(PauseGeneration)
    def _on_pause(self, call: PauseGeneration) -> None:
        if self._draining:
            self._frontends.reply(UtilityReply(call.call, ok=False, message="the engine is shutting down and cannot be paused"))
            return
        for delta in self._pausing.pause(call):
            self._frontends.put_delta(delta)

    @handles(ResumeGeneration)
    def _on_resume_generation(self, call: ResumeGeneration) -> None:
        self._go_on()
        self._frontends.reply(UtilityReply(call.call))

    def _go_on(self) -> None:
        """Be paused no more."""
        replies, held = self._pausing.resume()
        self._frontends.reply(*replies)
        for request in held:
            self.dispatch(request)

    @handles(Resume)
    def _on_resume(self, resume: Resume) -> None:
        logger.debug("resumed at epoch %d", resume.epoch)

    @handles(WorkerReady)
    def _on_late_answer(self, message: WorkerReady) -> None:
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
        self._frontends.reply(*self._describing.lost())
        for request in self._scheduler.restart():
            self._fail(Failure(self._actor, os.getpid(), "DeadlyRequest", deadly_text(message.reason), request=request))
        self._status.alone(None)
