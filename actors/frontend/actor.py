"""The frontend actor: takes what the core sends, and has its requests go on when the core is restarted."""

import asyncio
from collections import deque
from contextlib import suppress
from time import perf_counter

from ...ipc.errors import WouldBlock
from ...ipc.messages.config import SchedulerConfig
from ...ipc.messages.errors import ParameterError
from ...ipc.messages.failure import Failure
from ...ipc.messages.outputs import OutputMessage, StepOutputs, TokenDelta, UtilityReply
from ..base import Actor, handles
from ..errors import AT_FAULT, EngineGenerateError, deadly_text, failure_text
from ..logs import logger
from ..recovery import Recovery
from ..status import StatusBlock, message_name
from ..watch import EngineWatch
from .core_client import CoreClient
from .output_processor import OutputProcessor
from .slices import pieces, take_slice


class Frontend(Actor, receives=(OutputMessage,)):
    """The receiving side of a program's requests. An Observer of the supervisor."""

    def __init__(
        self,
        client: CoreClient,
        outputs: OutputProcessor,
        status: StatusBlock,
        watch: EngineWatch | None,
        scheduler: SchedulerConfig,
    ) -> None:
        """`watch` is told who was replaced; None where whoever calls `died` has told it."""
        self._client = client
        self._outputs = outputs
        self._status = status
        self._watch = watch
        self._scheduler = scheduler
        self._left: deque[TokenDelta] = deque()  # that have come, and await their turn

    async def receive(self) -> None:
        """Take what the core sends, for ever; other tasks get their turn within a step that brings much."""
        while True:
            self._take(await self._client.receive())
            while self._left:
                await asyncio.sleep(0)
                self._take_slice()

    def take_waiting(self) -> bool:
        """Take all that the core has sent; whether that is anything. Raises what `receive_nowait` does, but for WouldBlock."""
        taken = False
        with suppress(WouldBlock):
            while True:
                while self._left:
                    self._take_slice()
                self._take(self._client.receive_nowait())
                taken = True
        return taken

    def _take(self, message: OutputMessage) -> None:
        self._status.taking(message_name(message))
        self.dispatch(message)
        self._status.done()

    @handles(StepOutputs)
    def _on_step_outputs(self, message: StepOutputs) -> None:
        for delta in message.deltas:
            self._left.extend(pieces(delta))
        self._take_slice()

    def _take_slice(self) -> None:
        began = perf_counter()
        ended = self._outputs.process(take_slice(self._left))
        self._outputs.stats.output_seconds += perf_counter() - began
        for request in ended:
            self._client.abort(request)

    @handles(Failure)
    def _on_failure(self, failure: Failure) -> None:
        """One request failed in the core; the death of a process comes from the supervisor instead."""
        assert failure.request is not None
        field = AT_FAULT.get(failure.kind)
        error = EngineGenerateError(failure.message) if field is None else ParameterError(failure.message, field)
        if field is None:
            logger.error("request %s failed: %s", self._outputs.external_id(failure.request), failure.message)
        self._fail(failure.request, error)

    def _fail(self, number: int, error: Exception) -> None:
        for other in self._outputs.fail(number, error):
            self._client.abort(other)

    @handles(UtilityReply)
    def _on_reply(self, reply: UtilityReply) -> None:
        self._client.answer(reply)

    def died(self, recovery: Recovery) -> None:
        """See Observer. What a dead core had sent still counts; then its successor is sent the requests that go on."""
        self.take_waiting()
        if recovery.delay is None:
            return
        if self._watch is not None:
            self._watch.replaced(recovery.replaced)
        if recovery.core_died:
            if recovery.core_served and self._outputs.core_died(self._scheduler, recovery.alone):
                assert recovery.alone is not None
                error = EngineGenerateError(deadly_text(failure_text(recovery.failure)))
                logger.error("request %s failed: %s", self._outputs.external_id(recovery.alone), error)
                self._fail(recovery.alone, error)
            self._client.core_died(recovery.epoch)
        live = self._outputs.num_sent() if recovery.worked else 0
        self._outputs.stats.died([(death.actor, death.reason) for death in recovery.deaths], live)

    def works_again(self, seconds: float) -> None:
        """See Observer."""
        self._outputs.stats.pause_seconds += seconds
        logger.warning("the engine works again after %.1f s; %d requests go on", seconds, self._outputs.num_sent())
