"""Precedence: who takes the place of whom under the policy `priority`, and who has been overtaken too often to wait on."""

from .places import Places
from .preemption import choose_victim
from .request import NEVER, Request

MAX_OVERTAKES = 256
MAX_PUT_OFF = 8  # waiting requests that a step passes over because their prefix is being computed
_FIRST_OF_ALL = -(1 << 63)  # priority of a request that was overtaken too often


class Precedence:
    """Moves requests within and between the queues of `places`, before a step is planned."""

    __slots__ = ("_max_running", "_next_promotion", "_places", "admissions")

    def __init__(self, places: Places, max_running: int) -> None:
        self._places = places
        self._max_running = max_running
        self._next_promotion = 0  # not before so many admissions
        self.admissions = 0  # of requests that had no turn before

    def set_turn(self, request: Request, ahead: int = 0) -> None:
        """Note when a request that is about to wait for the first time will have been overtaken too often. So many others that
        come before it are not in the queue yet.
        """
        request.turn = self.admissions + len(self._places.waiting) + ahead + MAX_OVERTAKES

    def promote(self) -> None:
        """Let the oldest request that was overtaken too often rank before all others, for a row or for a share of the budget.

        It is one in MAX_OVERTAKES admissions, or a long queue of the overtaken would overtake everything else.
        """
        if self.admissions < self._next_promotion:
            return
        running, waiting = self._places.running, self._places.waiting
        behind = [(request, running) for request in running if request.num_schedulable - request.num_computed > 1]
        behind += [(waiting.oldest(), waiting)] if waiting else []
        late = [(request, queue) for request, queue in behind if self.admissions >= request.turn]
        if late:
            request, queue = min(late, key=lambda one: one[0].rank[1])
            queue.remove(request)
            request.rank, request.turn = (_FIRST_OF_ALL, request.rank[1]), NEVER
            queue.push(request)
            self._next_promotion = self.admissions + MAX_OVERTAKES

    def displace(self, oldest_step: int) -> None:
        """Take rows and blocks from running requests for those that wait with a better priority.

        Nobody enters that is in a step from `oldest_step` on, for it is still in flight.
        """
        found: list[int] = []  # held for those that enter, so that they do not count as free when others lose them
        self._make_room(oldest_step, found)
        self._places.kv_cache_manager.pool.free(reversed(found))

    def _make_room(self, oldest_step: int, found: list[int]) -> None:
        places, manager, entering, put_off = self._places, self._places.kv_cache_manager, list[Request](), 0
        rows, blocks = self._max_running - len(places.running), manager.pool.num_free
        for request in places.waiting.snapshot()[: self._max_running]:
            victims = [other for other in places.running if other.rank[0] > request.rank[0]]
            if not victims or request.last_step >= oldest_step or put_off == MAX_PUT_OFF:
                return
            match = manager.match(request)
            if manager.is_being_computed(request, match):
                put_off += 1
                continue
            entering.append(request)
            for entry in match.found:
                manager.pool.share(entry.block)
                found.append(entry.block)
            holders = list(places.holders(entering))
            if not places.would_free([*victims, *holders], match.num_blocks + len(places.running) - len(victims) - blocks):
                return
            while rows < 1 or not places.would_free(holders, match.num_blocks + len(places.running) - blocks):
                if not victims:
                    return
                victim = choose_victim(victims, manager) or victims[-1]
                victims.remove(victim)
                blocks += places.preempt(victim)
                rows += 1
            rows, blocks = rows - 1, blocks - match.num_blocks
