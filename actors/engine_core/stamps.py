"""When requests came and first entered a plan, until their first token says so."""

from collections.abc import Iterable

from msgspec.structs import replace

from ...ipc.messages.outputs import TokenDelta
from ...ipc.messages.plans import StepPlan


class Stamps:
    """Seconds of CLOCK_MONOTONIC, by request. Those that came with output had their first token from another core."""

    def __init__(self) -> None:
        self._queued: dict[int, float] = {}
        self._scheduled: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._queued.keys() | self._scheduled.keys())

    def queued(self, requests: Iterable[int], now: float) -> None:
        """These requests, without output, have come; where they come again, the first time counts."""
        for request in requests:
            self._queued.setdefault(request, now)

    def planned(self, plan: StepPlan, now: float) -> None:
        """Requests enter a row, some of them for the first time."""
        for row in plan.new:
            if len(row.tokens) == row.prompt_length:  # else it has been in a plan before
                self._scheduled.setdefault(row.request, now)

    def put_on(self, delta: TokenDelta) -> TokenDelta:
        """The delta, with the stamps if it holds the first token."""
        scheduled = self._scheduled.get(delta.request) if delta.tokens else None
        if scheduled is None:
            return delta
        queued = self._queued.get(delta.request, 0.0)
        self.forget(delta.request)
        return replace(delta, scheduled=scheduled, queued=queued)

    def forget(self, request: int) -> None:
        """It has ended."""
        self._queued.pop(request, None)
        self._scheduled.pop(request, None)
