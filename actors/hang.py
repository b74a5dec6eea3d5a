"""HangDetector: which actors are stuck, judged from what they show of themselves, one look after another. Pure.

An actor is hung when it holds an unanswered message past the limit in two successive looks at normal cadence.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

_SHARE, _LONGEST, _SHORTEST = 4, 5.0, 0.05  # looks within a limit, and seconds between two of them
_LATE = 2.0  # cadences after which an observer knows that it was held up itself


@dataclass(frozen=True, slots=True)
class Observation:
    """An actor at one look."""

    actor: str
    epoch: int
    busy: bool  # it has a message in hand, or one waits for it
    marker: Hashable  # differs whenever it has got on
    what: str  # what it does not get on with, for people


def cadence_of(limit: float) -> float:
    """Seconds between two looks for what may take `limit` seconds."""
    return max(min(limit / _SHARE, _LONGEST), _SHORTEST)


class HangDetector:
    """Remembers since when each actor has been busy without getting on."""

    def __init__(self, limit: float) -> None:
        """`limit`: seconds that an actor may take for a message."""
        self._limit = limit
        self._late = _LATE * cadence_of(limit)
        self._last: float | None = None  # when it looked
        self._stuck: dict[str, tuple[Hashable, float]] = {}  # by actor: what it showed, and since when

    def look(self, now: float, seen: Iterable[Observation]) -> dict[str, str]:
        """Say of each hung actor, by its name, what it is stuck in; looks come a cadence apart, in order of `now`, in seconds.

        A look that comes late begins anew: whoever could not look may have kept the others from getting on.
        """
        last, self._last = self._last, now
        if last is None or now - last > self._late:
            self._stuck.clear()
            last = now
        stuck, self._stuck = self._stuck, {}
        hung = {}
        for actor in seen:
            if not actor.busy:
                continue
            shown = (actor.epoch, actor.marker)
            before, since = stuck.get(actor.actor, (None, now))
            if before != shown:
                since = now
            self._stuck[actor.actor] = shown, since
            if last - since > self._limit:
                hung[actor.actor] = f"{actor.what} for {now - since:.0f} s"
        return hung
