"""Suspects: requests that were in flight when processes died, and how the one they die of is told from the rest.

A request that was in flight at two deaths, without progress between, is a suspect. It runs alone: a step that holds it holds
nothing else, and no other step is in flight with it, so another death convicts it and nobody else. Progress is the result of a
step that computes as far as the steps that were lost with it would have; that clears it.

When a core dies nobody knows who was in flight, so the frontend suspects as many as run at once; some may only have waited.
A request whose earlier deaths are such has to die alone twice.
"""

from collections.abc import Iterable

from .batch import Batch
from .request import Request, RequestState

SUSPECT = 2  # deaths at which a request runs alone


class Suspects:
    """The deaths of each request, and who runs alone. The scheduler asks only while `marked` is not empty."""

    __slots__ = ("alone", "marked")

    def __init__(self) -> None:
        self.marked: list[Request] = []  # all unfinished ones with deaths; finished ones leave when they are next looked at
        self.alone: Request | None = None  # whose step is in flight alone, even if it has finished meanwhile

    def turn(self, *, nothing_in_flight: bool) -> int | None:
        """The number of the one in flight alone, or of the one that runs alone as soon as nothing is in flight."""
        suspect = self.next() if self.marked and nothing_in_flight else self.alone
        return None if suspect is None else suspect.request_id

    def next(self) -> Request | None:
        """The suspect that runs alone now: the one in flight, else the one that has a row already, else by rank; None if nobody
        has to.
        """
        if self.alone is not None:
            return self.alone
        self._tidy()
        idle = (RequestState.PARKED, RequestState.FOLLOWING)
        ready = [request for request in self.marked if request.deaths >= SUSPECT and request.state not in idle]
        return min(ready, key=lambda request: (request.state is not RequestState.RUNNING, request.rank), default=None)

    def clear(self, batch: Batch) -> None:
        """A step's result is there: clear those that it has computed as far as any step that was lost with them."""
        self.alone = None
        for request, start, count in zip(batch.requests, batch.starts, batch.counts, strict=True):
            if request.deaths and start + count >= request.clear_at:
                request.deaths = request.deaths_known = request.deaths_alone = request.clear_at = 0
        self._tidy()

    def blame(self, lost: Iterable[Batch]) -> list[Request]:
        """No result of these steps, the oldest first, will come: each unfinished request in them has one death more.

        Returns the convicted: the one that was in flight alone, if that is its third death for certain, or its second alone.
        """
        ends: dict[Request, int] = {}
        for batch in lost:
            for request, start, count in zip(batch.requests, batch.starts, batch.counts, strict=True):
                if request.state is not RequestState.FINISHED:
                    ends[request] = start + count
        for request, end in ends.items():
            if not request.deaths:
                self.marked.append(request)
            request.deaths += 1
            request.deaths_known += 1
            request.deaths_alone += request is self.alone
            request.clear_at = max(request.clear_at, end)
        alone = [request for request in ends if request is self.alone]
        convicted = [request for request in alone if request.deaths_known > SUSPECT or request.deaths_alone > 1]
        self.alone = None
        return convicted

    def _tidy(self) -> None:
        self.marked = [request for request in self.marked if request.deaths and request.state is not RequestState.FINISHED]
