"""Describing: answers to DescribeEngine, for some of which the workers are asked first."""

from collections.abc import Callable

from msgspec.structs import replace

from ...ipc.messages.descriptions import WorkerDescription
from ...ipc.messages.outputs import EngineDescription, UtilityReply
from ...ipc.messages.requests import DescribeEngine
from ...ipc.messages.results import CallResult
from .executor import Executor

_REPLACED = "the workers are being replaced, and cannot be asked"


class Describing:
    """The calls that wait for what every worker says of itself. Those that ask for the core alone never wait."""

    def __init__(self, executor: Executor, own: Callable[[], EngineDescription]) -> None:
        """`own` gives the core's numbers at this moment."""
        self._executor = executor
        self._own = own
        self._open: dict[int, dict[int, WorkerDescription]] = {}  # by call, then by rank

    def asked(self, call: DescribeEngine) -> list[UtilityReply]:
        """The reply to a call, if it can be given at once."""
        if not call.workers:
            return [UtilityReply(call.call, description=self._own())]
        if not self._executor.ready:
            return [UtilityReply(call.call, ok=False, message=_REPLACED)]
        self._open[call.call] = {}
        self._executor.describe(call.call)
        return []

    def told(self, result: CallResult) -> list[UtilityReply]:
        """A worker has answered; the reply that this completes."""
        assert result.description is not None, f"nobody asked for {result}"
        found = self._open.get(result.call)
        assert found is not None, f"nobody asked for {result}"
        found[result.rank] = result.description
        if len(found) < self._executor.num_workers:
            return []
        del self._open[result.call]
        workers = [found[rank] for rank in sorted(found)]
        return [UtilityReply(result.call, description=replace(self._own(), workers=workers))]

    def lost(self) -> list[UtilityReply]:
        """The workers were replaced: none that was asked will answer."""
        calls, self._open = list(self._open), {}
        return [UtilityReply(call, ok=False, message=_REPLACED) for call in calls]
