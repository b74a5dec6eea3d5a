"""Pausing: what PauseGeneration has asked for, until ResumeGeneration."""

from collections.abc import Iterable

from ...ipc.messages.outputs import TokenDelta, UtilityReply
from ...ipc.messages.requests import AddRequest, PauseGeneration, PauseMode
from ...sched.interface import SchedulerInterface
from .request_port import without


def members_of(request: AddRequest) -> list[int]:
    """The numbers of a request and its siblings."""
    return [request.request, *(sibling.request for sibling in request.siblings)]


class Pausing:
    """Whether steps are planned, the requests that have come meanwhile, and whom to answer once nothing is in flight.

    The latest PauseGeneration counts; when it is answered, so are those before it.
    """

    def __init__(self, scheduler: SchedulerInterface) -> None:
        self._scheduler = scheduler
        self._mode: PauseMode | None = None
        self._unanswered: list[PauseGeneration] = []
        self._held: dict[int, AddRequest] = {}  # of each number the message that brought it, in the order in which they came
        self._in_flight = 0  # steps

    @property
    def paused(self) -> bool:
        """Whether requests that come are to be held."""
        return self._mode is not None

    @property
    def may_plan(self) -> bool:
        """Whether steps may be planned; in the mode "wait", those of the requests that were there before."""
        return self._mode in (None, "wait")

    @property
    def num_held(self) -> int:
        """Requests held."""
        return len(self._held)

    @property
    def in_flight(self) -> bool:
        """Whether the result of a step is awaited."""
        return self._in_flight > 0

    def pause(self, call: PauseGeneration) -> list[TokenDelta]:
        """From now on this one counts. Returns the last deltas of the requests that it ends."""
        self._mode = call.mode
        self._unanswered.append(call)
        if call.mode != "abort":
            return []
        deltas = self._scheduler.abort_all()
        for number, request in self._held.items():
            position = len(request.output) if number == request.request else 0
            deltas.append(TokenDelta(number, position, [], "abort"))
        self._held.clear()
        return deltas

    def resume(self) -> tuple[list[UtilityReply], list[AddRequest]]:
        """Be paused no more. Returns what to reply to calls that are not answered yet, and the requests held."""
        replies = [UtilityReply(call.call) for call in self._unanswered]
        messages = {id(request): request for request in self._held.values()}
        dropped = {number for request in messages.values() for number in members_of(request)} - self._held.keys()
        wanted = [without(request, dropped) for request in messages.values()]
        self._mode, self._unanswered, self._held = None, [], {}
        return replies, [request for request in wanted if request is not None]

    def hold(self, request: AddRequest) -> None:
        """A request has come while `paused`."""
        self._held.update(dict.fromkeys(members_of(request), request))

    def drop(self, requests: Iterable[int]) -> None:
        """Forget these, if they are held; their siblings stay."""
        for number in requests:
            self._held.pop(number, None)

    def drop_turns(self, session: int) -> list[int]:
        """Forget the turns of a session that are held; returns their numbers."""
        turns = [number for number, request in self._held.items() if request.session == session]
        self.drop(turns)
        return turns

    def planned(self) -> None:
        """A step is in flight."""
        self._in_flight += 1

    def finished(self) -> None:
        """The result of the oldest step in flight is there."""
        self._in_flight -= 1

    def lost(self) -> None:
        """No step in flight will have a result."""
        self._in_flight = 0

    def settled(self) -> list[UtilityReply]:
        """The replies that are due now, with the prefix cache emptied if one of the calls has asked for it."""
        calls = self._unanswered
        if not calls or self._in_flight or (self._mode == "wait" and self._scheduler.has_work):
            return []
        if any(call.clear_cache for call in calls):
            self._scheduler.reset_prefix_cache()
        self._unanswered = []
        return [UtilityReply(call.call) for call in calls]
