"""Scheduler: decides what each step computes, and turns its results into news for the requests.

There is no prefill or decode phase. Each request has positions to catch up with, under one token budget a step: running
requests first, then waiting ones as long as budget, rows and blocks last.

Requests have a rank: their priority (always 0 under the policy fcfs), then the order of arrival. Who ranks before another never
waits for it, and nobody waits for ever:

- Of two that run, the one behind gives way when blocks run out (see preemption.py). So the first of all always gets on, and
  with the first finished, so does the next.
- Of two that wait, the one behind is admitted after the one before, but while that one waits for a prefix that a running
  request of the same or a better priority is just computing.
- One with a lower priority number takes the place of a running one with a higher.
- A request that MAX_OVERTAKES later ones have overtaken, for a row or for a share of the budget, ranks before all others from
  then on, whatever their priority. This is granted once in MAX_OVERTAKES admissions, to the one that came first.
"""

from collections import deque

from ..ipc.messages.config import CacheConfig, SchedulerConfig
from ..ipc.messages.outputs import FinishReason, TokenDelta
from ..ipc.messages.plans import StepPlan
from ..ipc.messages.requests import AddRequest
from ..ipc.messages.results import StepResult
from .batch import Batch
from .errors import DoesNotFit, DuplicateRequest, RequestTooLong, ResultMismatch
from .outputs import RequestFailure, Stats, StepUpdate
from .places import Places
from .preemption import choose_victim
from .request import NEVER, Request, RequestState

MAX_OVERTAKES = 256
_FIRST_OF_ALL = -(1 << 63)  # priority of a request that was overtaken too often
_MAX_PUT_OFF = 8  # waiting requests that a step passes over because their prefix is being computed
_NO_BLOCKS: list[int] = []


class Scheduler:
    """Call add, abort, park and unpark at any time, schedule for the next plan, and update with each plan's result, in order.

    The attributes are for check_integrity and for reading.
    """

    def __init__(
        self,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        *,
        num_blocks: int,
        max_model_len: int,
        steps_in_flight: int = 1,
    ) -> None:
        for name, value, least in (
            ("num_blocks", num_blocks, 1),
            ("max_model_len", max_model_len, 2),
            ("steps_in_flight", steps_in_flight, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self.max_model_len = max_model_len
        self.max_num_batched_tokens = scheduler.max_num_batched_tokens
        self.steps_in_flight = steps_in_flight  # how many plans may be out without a result
        self.max_running = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)  # each may need a token a step
        self.places = Places(num_blocks, cache, num_rows=scheduler.max_num_seqs)
        self.in_flight: deque[Batch] = deque()
        self.next_step = 0
        self._by_priority = scheduler.scheduling_policy == "priority"
        self._long_prefill = scheduler.long_prefill_token_threshold
        self._arrivals = 0
        self._admissions = 0  # of requests that had no turn before
        self._next_promotion = 0  # not before so many
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._refused: tuple[int, ...] = ()  # the request for which there was no room last, and how things were then

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished or a step's result is still to come."""
        return bool(self.places.requests or self.in_flight)

    def stats(self) -> Stats:
        """Numbers of this moment."""
        pool = self.places.kv_cache_manager.pool
        return Stats(
            running=len(self.places.running),
            waiting=len(self.places.waiting) + len(self.places.parked),
            num_blocks=pool.num_blocks,
            free_blocks=pool.num_free,
            steps=self.next_step - len(self.in_flight),
            parked=len(self.places.parked),
            preemptions=self.places.num_preemptions,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
        )

    def add(self, request: AddRequest) -> TokenDelta | None:
        """Let a request wait for its turn.

        Returns None; but if the output that it brings along already ends it, nothing is added, and the delta that says
        so (without tokens) is returned. Raises RequestTooLong, DoesNotFit or DuplicateRequest, or ValueError for an
        empty prompt; then nothing has changed.
        """
        if request.request in self.places.requests:
            raise DuplicateRequest(request.request, request.external_id)
        prompt_tokens = len(request.prompt)
        if not prompt_tokens:
            raise ValueError("prompt must hold at least one token, got none")
        if prompt_tokens >= self.max_model_len:
            raise RequestTooLong(prompt_tokens=prompt_tokens, max_model_len=self.max_model_len)
        new = Request(
            request, max_model_len=self.max_model_len, block_size=self.places.kv_cache_manager.block_size, number=self._arrivals
        )
        if new.output:
            stop = new.stop_rules.check(new.output[-1], len(new.output))
            if stop is not None:
                return TokenDelta(new.request_id, len(new.output), [], stop[0], stop[1])
        manager = self.places.kv_cache_manager
        blocks = manager.blocks_for(new.max_positions)
        if blocks > manager.pool.num_blocks:
            raise DoesNotFit(
                prompt_tokens=prompt_tokens,
                tokens=new.max_positions + 1,
                blocks=blocks,
                num_blocks=manager.pool.num_blocks,
                block_size=manager.block_size,
            )
        if not self._by_priority:
            new.rank = (0, self._arrivals)
        self._arrivals += 1
        new.turn = self._admissions + len(self.places.waiting) + MAX_OVERTAKES
        self.places.add(new)
        return None

    def abort(self, request: int) -> bool:
        """Forget a request and free what it holds. False if it is unknown or has finished already.

        Safe while a step with the request is in flight; its late tokens are dropped.
        """
        found = self.places.requests.get(request)
        if found is None:
            return False
        self.places.release(found)
        return True

    def park(self, request: int) -> bool:
        """Schedule a request no more until `unpark`. False if it is unknown or has finished already.

        It gives up its row at once, but keeps its blocks until others need them. Safe while a step with the request is in
        flight; its late tokens are delivered as ever.
        """
        found = self.places.requests.get(request)
        if found is None:
            return False
        if found.state is not RequestState.PARKED:
            self.places.park(found)
        return True

    def unpark(self, request: int) -> bool:
        """Let a parked request go on when its turn comes, by the rank it always had. False if it is not parked."""
        found = self.places.parked.get(request)
        if found is None:
            return False
        self.places.wait_again(found)
        return True

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> None:
        """Let no request find what was computed so far. Those that run go on with what they have, or, with `preempt_running`,
        compute it again.
        """
        self.places.kv_cache_manager.reset(self.places.requests.values())
        if preempt_running:
            for request in self.places.running.snapshot():
                self.places.wait_again(request)
            for request in (*self.places.parked.values(), *self.places.waiting):
                self.places.kv_cache_manager.free(request)

    def schedule(self) -> StepPlan | None:
        """The next step, or None if there is nothing to compute or as many steps as allowed are in flight."""
        if len(self.in_flight) >= self.steps_in_flight:
            return None
        alone = len(self.places.running) + len(self.places.waiting) == 1
        batch = Batch(self.next_step, self.max_num_batched_tokens, 0 if alone else self._long_prefill)
        preemptions = self.places.num_preemptions
        if self._by_priority:
            self._promote()
            self._displace()
            preemptions = self.places.num_preemptions
        long = self._continue_running(batch)
        if self.places.num_preemptions == preemptions:
            self._admit(batch, long)
        self._catch_up(batch, long)
        if not batch.rows:
            return None
        self.next_step += 1
        self.in_flight.append(batch)
        return batch.plan()

    def update(self, result: StepResult) -> StepUpdate:
        """Apply the oldest step's result. Raises ResultMismatch, changing nothing, if it is not that step's."""
        if not self.in_flight:
            raise ResultMismatch(f"result of step {result.step}, but no step is in flight")
        self.in_flight[0].check(result)
        batch = self.in_flight.popleft()
        deltas: list[TokenDelta] = []
        failures: list[RequestFailure] = []
        finished = RequestState.FINISHED
        for failure in result.failures:
            request = batch.requests[failure.index]
            if request.state is not finished:
                failures.append(RequestFailure(request.request_id, failure))
                self.places.kv_cache_manager.free(request, forget=True)  # what it computed may be wrong
                deltas.append(self._finish(request, [], "error"))
        for request, end in batch.computing:
            self.places.kv_cache_manager.computed(request, end)
            self._refused = ()  # it may find more now
        for request, token in zip(batch.sampled, result.tokens, strict=True):
            request.num_in_flight -= 1
            if request.state is finished:
                continue  # failed, aborted, or ended by the result before this one
            output = request.output
            position = len(output)
            end = len(request.prompt) + position
            if end >= request.next_full:
                self.places.kv_cache_manager.computed(request, end)
                self._refused = ()
            stop = request.stop_rules.check(token, position + 1)
            if stop is None:
                output.append(token)
                cached = 0 if position else request.num_cached_tokens
                delta = TokenDelta(request.request_id, position, [token], cached_tokens=cached)
            else:
                delta = self._finish(request, [token], stop[0], stop[1])
            deltas.append(delta)
        return StepUpdate(deltas, failures)

    def _continue_running(self, batch: Batch) -> deque[Request]:
        """Give each running request its next token; returns those that have more than one to catch up with.

        A request that finds no block for its token takes one from others, or gives way itself.
        """
        places, long = self.places, deque[Request]()
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

    def _promote(self) -> None:
        """Let the oldest request that was overtaken too often rank before all others, for a row or for a share of the budget.

        It is one in MAX_OVERTAKES admissions, or a long queue of the overtaken would overtake everything else.
        """
        if self._admissions < self._next_promotion:
            return
        running, waiting = self.places.running, self.places.waiting
        behind = [(request, running) for request in running if request.num_schedulable - request.num_computed > 1]
        behind += [(waiting.oldest(), waiting)] if waiting else []
        late = [(request, queue) for request, queue in behind if self._admissions >= request.turn]
        if late:
            request, queue = min(late, key=lambda one: one[0].rank[1])
            queue.remove(request)
            request.rank, request.turn = (_FIRST_OF_ALL, request.rank[1]), NEVER
            queue.push(request)
            self._next_promotion = self._admissions + MAX_OVERTAKES

    def _displace(self) -> None:
        """Take rows and blocks from running requests for those that wait with a better priority."""
        places, entering, put_off = self.places, list[Request](), 0
        rows, blocks = self.max_running - len(places.running), places.kv_cache_manager.pool.num_free
        for request in places.waiting.snapshot()[: self.max_running]:
            victims = [other for other in places.running if other.rank[0] > request.rank[0]]
            if not victims or self._is_in_flight(request) or put_off == _MAX_PUT_OFF:
                return
            match = places.kv_cache_manager.match(request)
            if places.kv_cache_manager.is_being_computed(request, match):
                put_off += 1
                continue
            entering.append(request)
            holders = places.holders(entering)
            if blocks + places.blocks_of([*victims, *holders]) < match.num_blocks + len(places.running) - len(victims):
                return
            while rows < 1 or blocks + places.blocks_of(holders) < match.num_blocks + len(places.running):
                victim = choose_victim(victims, places.kv_cache_manager)
                if victim is None:
                    return
                victims.remove(victim)
                blocks += places.preempt(victim)
                rows += 1
            rows, blocks = rows - 1, blocks - match.num_blocks

    def _admit(self, batch: Batch, long: deque[Request]) -> None:
        """Let waiting requests in, in order of rank, as long as there are budget, rows, and blocks for all tokens known now.

        So whoever is admitted has all its prompt's blocks, and preemption is for what is generated only. Another block is kept
        free for each request that runs, or the new one would soon have to give way again. `long` get their tokens by rank too.
        """
        places, put_off = self.places, list[Request]()
        while places.waiting and len(places.running) < self.max_running and len(put_off) < _MAX_PUT_OFF:
            request = places.waiting.first()
            self._catch_up(batch, long, before=request)
            now = (request.request_id, places.kv_cache_manager.pool.num_free, len(places.running), len(places.parked))
            if not batch.budget or self._is_in_flight(request) or now == self._refused:
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
                self._refused = now
                break  # later ones, though smaller, wait behind it, or it might wait for ever
        for request in put_off:
            places.waiting.push(request)

    def _is_in_flight(self, request: Request) -> bool:
        return bool(self.in_flight) and request.last_step >= self.in_flight[0].step

    def _count_admission(self, request: Request) -> None:
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = min(request.num_computed, len(request.prompt))
            self._admissions += 1
            self._prefix_queries += len(request.prompt) if self.places.kv_cache_manager.caching else 0
            self._prefix_hits += request.num_cached_tokens

    def _finish(self, request: Request, tokens: list[int], reason: FinishReason, stop_reason: int | None = None) -> TokenDelta:
        """End a request; returns its last delta."""
        position = len(request.output)
        request.output.extend(tokens)
        self.places.release(request)
        cached = 0 if position else max(request.num_cached_tokens, 0)
        return TokenDelta(request.request_id, position, tokens, reason, stop_reason, cached)
