"""The frontend actor: takes what the core sends, and has its requests go on when the core is restarted."""

from contextlib import suppress

from ...ipc.errors import WouldBlock
from ...ipc.messages.config import SchedulerConfig
from ...ipc.messages.errors import ParameterError
from ...ipc.messages.failure import Failure
from ...ipc.messages.outputs import OutputMessage, StepOutputs, UtilityReply
from ..base import Actor, handles
from ..errors import EngineGenerateError, deadly_text, failure_text
from ..logs import logger
from ..recovery import Recovery
from ..status import StatusBlock, message_name
from ..watch import EngineWatch
from .core_client import CoreClient
from .output_processor import OutputProcessor


class Frontend(Actor, receives=(OutputMessage,)):
    """The receiving side of a program's requests. An Observer of the supervisor."""

    def __init__(
        self,
        client: CoreClient,
        outputs: OutputProcessor,
        status: StatusBlock,
        watch: EngineWatch,
        scheduler: SchedulerConfig,
    ) -> None:
        self._client = client
        self._outputs = outputs
        self._status = status
        self._watch = watch
        self._scheduler = scheduler

    async def receive(self) -> None:
        """Take what the core sends, for ever."""
        while True:
            self._take(await self._client.receive())

    def _take(self, message: OutputMessage) -> None:
        self._status.taking(message_name(message))
        self.dispatch(message)
        self._status.done()

    @handles(StepOutputs)
    def _on_step_outputs(self, message: StepOutputs) -> None:
        for request in self._outputs.process(message.deltas):
            self._client.abort(request)

    @handles(Failure)
    def _on_failure(self, failure: Failure) -> None:
        """One request failed in the core; the death of a process comes from the supervisor instead."""
        assert failure.request is not None
        refused = failure.kind in ("RequestTooLong", "DoesNotFit")
        error = ParameterError(failure.message, "prompt") if refused else EngineGenerateError(failure.message)
        if not refused:
            logger.error("request %s failed: %s", self._outputs.external_id(failure.request), failure.message)
        self._outputs.fail(failure.request, error)

    @handles(UtilityReply)
    def _on_reply(self, reply: UtilityReply) -> None:
        self._client.answer(reply)

    def died(self, recovery: Recovery) -> None:
        """See Observer. What a dead core had sent still counts; then its successor is sent the requests that go on."""
        with suppress(WouldBlock):
            while True:
                self._take(self._client.receive_nowait())
        if recovery.delay is None:
            return
        self._watch.replaced(recovery.replaced)
        if recovery.core_died:
            if recovery.core_served and self._outputs.core_died(self._scheduler, recovery.alone):
                assert recovery.alone is not None
                error = EngineGenerateError(deadly_text(failure_text(recovery.failure)))
                logger.error("request %s failed: %s", self._outputs.external_id(recovery.alone), error)
                self._outputs.fail(recovery.alone, error)
            self._client.core_died(recovery.epoch)
        live = self._outputs.num_sent() if recovery.worked else 0
        self._outputs.stats.died([(death.actor, death.reason) for death in recovery.deaths], live)

    def works_again(self, seconds: float) -> None:
        """See Observer."""
        self._outputs.stats.pause_seconds += seconds
        logger.warning("the engine works again after %.1f s; %d requests go on", seconds, self._outputs.num_sent())
