"""Planner: which requests are in a step, and with how many positions each.

Requests have a rank: their priority (always 0 under the policy fcfs), then the order of arrival. Who ranks before another never
waits for it, and nobody waits for ever:

- Of two that run, the one behind gives way when blocks run out (see preemption.py). So the first of all always gets on, and
  with the first finished, so does the next.
- Of two that wait, the one behind is admitted after the one before, but while that one waits for a prefix that a running
  request of the same or a better priority is just computing.
- One with a lower priority number takes the place of a running one with a higher.
- A request that MAX_OVERTAKES later ones have overtaken, for a row or for a share of the budget, ranks before all others from
  then on, whatever their priority. This is granted once in MAX_OVERTAKES admissions, to the one that came first.
- A suspect (see suspects.py) comes before all others, takes row and blocks from whoever has them, and has its steps to itself.
"""

from collections import deque

from ..ipc.messages.config import SchedulerConfig
from .batch import Batch
from .places import Places
from .precedence import MAX_PUT_OFF, Precedence
from .request import Request, RequestState
from .suspects import Suspects

_NO_BLOCKS: list[int] = []


class Planner:
    """Moves requests between their places, and puts those that run into the next step."""

    __slots__ = (
        "_budget",
        "_by_priority",
        "_long_prefill",
        "_max_running",
        "_oldest_step",
        "_places",
        "_precedence",
        "_suspects",
        "refused",
    )

    def __init__(
        self, scheduler: SchedulerConfig, places: Places, precedence: Precedence, suspects: Suspects, max_running: int
    ) -> None:
        self._places = places
        self._precedence = precedence
        self._suspects = suspects
        self._max_running = max_running
        self._budget = scheduler.max_num_batched_tokens
        self._by_priority = scheduler.scheduling_policy == "priority"
        self._long_prefill = scheduler.long_prefill_token_threshold
        self._oldest_step = 0  # in flight; a request that is in it or in a later one has not got all its tokens yet
        self.refused: tuple[int, ...] = ()  # the request for which there was no room last, and how things were then

    def plan(self, step: int, oldest_step: int, suspect: Request | None) -> Batch:
        """Step `step`, while those from `oldest_step` on are in flight. Without rows if there is nothing to compute.

        A suspect that has to run alone does, while no other step is in flight.
        """
        self._oldest_step = oldest_step
        batch = self._plan_together(step) if suspect is None else self._plan_alone(step, suspect)
        if batch.rows:
            batch.copies = self._places.kv_cache_manager.take_copies()
        return batch

    def _plan_alone(self, step: int, suspect: Request) -> Batch:
        """A step of a suspect and nothing else, while no other is in flight. It always has something to compute."""
        batch = Batch(step, self._budget)
        self.refused = ()  # whoever gives up its row for it keeps blocks that others may have
        if self._places.enter_first(suspect, self._max_running):
            self._count_admission(suspect)
            batch.add_new(suspect, batch.chunk_of(suspect))
        else:
            batch.add(suspect, batch.chunk_of(suspect), _NO_BLOCKS)
        self._suspects.alone = suspect
        return batch

    def _plan_together(self, step: int) -> Batch:
        """A step of all others; without rows if there is nothing to compute."""
        alone = len(self._places.running) + len(self._places.waiting) == 1
        batch = Batch(step, self._budget, 0 if alone else self._long_prefill)
        preemptions = self._places.num_preemptions
        if self._by_priority:
            self._precedence.promote()
            self._precedence.displace(self._oldest_step)
            preemptions = self._places.num_preemptions
        long = self._continue_running(batch)
        if self._places.num_preemptions == preemptions:
            self._admit(batch, long)
        self._catch_up(batch, long)
        return batch

    def _continue_running(self, batch: Batch) -> deque[Request]:
        """Give each running request its next token; returns those that have more than one to catch up with.

        A request that finds no block for its token takes one from others, or gives way itself.
        """
        places, long = self._places, deque[Request]()
        for request in places.running.snapshot():
            start = request.num_computed
            count = request.num_schedulable - start
            if count > 1:
                long.append(request)
            elif count and request.state is RequestState.RUNNING:  # else its last token is in flight, or it just gave way
                if start < request.num_slots:
                    batch.add(request, 1, _NO_BLOCKS)
                elif places.find_block(request):
                    batch.add(request, 1, places.kv_cache_manager.extend(request, start + 1))
                else:
                    places.preempt(request)
        return long

    def _catch_up(self, batch: Batch, long: deque[Request], before: Request | None = None) -> None:
        """Let requests with more than one token to catch up with have what the budget allows, those that rank first before."""
        while long and batch.budget and (before is None or long[0].rank < before.rank):
            request = long.popleft()
            if request.state is RequestState.RUNNING:
                batch.add(request, batch.chunk_of(request), _NO_BLOCKS)

    def _admit(self, batch: Batch, long: deque[Request]) -> None:
        """Let waiting requests in, in order of rank, as long as there are budget, rows, and blocks for all tokens known now.

        So whoever is admitted has all its prompt's blocks, and preemption is for what is generated only. Another block is kept
        free for each request that runs, or the new one would soon have to give way again. `long` get their tokens by rank too.
        """
        places, put_off = self._places, list[Request]()
        while places.waiting and len(places.running) < self._max_running and len(put_off) < MAX_PUT_OFF:
            request = places.waiting.first()
            self._catch_up(batch, long, before=request)
            now = (request.request_id, places.kv_cache_manager.pool.num_free, len(places.running), places.num_preemptions)
            if not batch.budget or request.last_step >= self._oldest_step or now == self.refused:
                break  # a token in flight belongs into the NewRow, and a step is short
            match = places.kv_cache_manager.match(request)
            if places.kv_cache_manager.is_being_computed(request, match):
                places.waiting.remove(request)
                put_off.append(request)
            elif places.reserve(request, match, spare=len(places.running)):
                places.enter(request, match)
                self._count_admission(request)
                batch.add_new(request, batch.chunk_of(request))
            else:
                self.refused = now
                break  # later ones, though smaller, wait behind it, or it might wait for ever
        for request in put_off:
            places.waiting.push(request)

    def _count_admission(self, request: Request) -> None:
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = min(request.num_computed, len(request.prompt))
            self._precedence.admissions += 1
