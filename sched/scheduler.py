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
- A suspect (see suspects.py) comes before all others, takes row and blocks from whoever has them, and has its steps to itself.
"""

from collections import deque

from ..ipc.messages.config import CacheConfig, SchedulerConfig
from ..ipc.messages.outputs import FinishReason, TokenDelta
from ..ipc.messages.plans import StepPlan
from ..ipc.messages.requests import AddRequest
from ..ipc.messages.results import StepResult
from .arrivals import Arrivals
from .batch import Batch
from .errors import ResultMismatch
from .logprobs import add_logprobs
from .outputs import RequestFailure, Stats, StepUpdate
from .places import Places
from .precedence import MAX_PUT_OFF, Precedence
from .request import Request, RequestState
from .suspects import Suspects

_NO_BLOCKS: list[int] = []


class Scheduler:
    """Call add, abort, park and unpark at any time, schedule for the next plan, and update with each plan's result, in order;
    or restart once no result will come.

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
        self.precedence = Precedence(self.places, self.max_running)
        self.suspects = Suspects()
        self.in_flight: deque[Batch] = deque()
        self.next_step = 0
        self._by_priority = scheduler.scheduling_policy == "priority"
        self._long_prefill = scheduler.long_prefill_token_threshold
        self._arrivals = Arrivals(max_model_len=max_model_len, by_priority=self._by_priority)
        self._steps_lost = 0  # that have no result and will have none
        self._refused: tuple[int, ...] = ()  # the request for which there was no room last, and how things were then

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished or a step's result is still to come."""
        return bool(self.places.requests or self.in_flight)

    @property
    def alone(self) -> int | None:
        """The suspect whose step is in flight alone, even if it has been aborted meanwhile, or is planned next; else None.

        If a process that works on it dies now, it has caused that.
        """
        return self.suspects.turn(nothing_in_flight=not self.in_flight)

    def stats(self) -> Stats:
        """Numbers of this moment."""
        manager, running = self.places.kv_cache_manager, len(self.places.running)
        pool = manager.pool
        return Stats(
            running=running,
            waiting=len(self.places.requests) - running,
            num_blocks=pool.num_blocks,
            free_blocks=pool.num_free,
            steps=self.next_step - len(self.in_flight) - self._steps_lost,
            parked=len(self.places.parked),
            preemptions=self.places.num_preemptions,
            prefix_queries=manager.prefix_queries,
            prefix_hits=manager.prefix_hits,
        )

    def add(self, request: AddRequest) -> TokenDelta | None:
        """Let a request wait for its turn, and its siblings for their prompt's KV.

        Returns None; but if the output that it brings along already ends it, it is not added, and the delta that says
        so (without tokens) is returned. Raises RequestTooLong, DoesNotFit or DuplicateRequest, or ValueError for an
        empty prompt; then nothing has changed.
        """
        group = self._arrivals.make(request, self.places.kv_cache_manager, self.places.requests)
        new, ended = group[0], None
        if new.output:
            stop = new.stop_rules.check(new.output[-1], len(new.output), new.output[:-1])
            if stop is not None:
                ended = new.delta(len(new.output), [], stop[0], stop[1])
                del group[0]
        for ahead, member in enumerate(group):
            self.precedence.set_turn(member, ahead)
            if member.deaths:
                self.suspects.marked.append(member)
        if new.output and ended is None:  # it is past what the others could share
            self.places.add(group.pop(0))
        if group:
            self.places.add_group(group[0], group[1:])
        return ended

    def abort(self, request: int) -> bool:
        """Forget a request and free what it holds. False if it is unknown or has finished already.

        Safe while a step with the request is in flight; its late tokens are dropped.
        """
        found = self.places.requests.get(request)
        if found is None:
            return False
        self.places.release(found)
        return True

    def abort_all(self) -> list[TokenDelta]:
        """End all requests; returns their last deltas, without tokens. Late tokens are dropped, as by `abort`."""
        return [self._finish(request, [], "abort") for request in list(self.places.requests.values())]

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
        self.places.reset_prefix_cache(preempt_running=preempt_running)

    def restart(self) -> list[int]:
        """The workers were replaced, or have forgotten everything: no step in flight has a result, and no block its content.

        Unfinished requests wait again, or stay parked, with the tokens that they have; the next ones are what they would have
        been. Those that were in flight have a death more. Returns the requests that have ended instead, without a delta:
        the one that was in flight alone (see suspects.py). Step numbers go on, so that a late result is a ResultMismatch.
        """
        convicted = self.suspects.blame(self.in_flight)
        self._steps_lost += len(self.in_flight)
        self.in_flight.clear()
        self._refused = ()
        self.places.restart()
        for request in convicted:
            self.places.release(request)
        return [request.request_id for request in convicted]

    def schedule(self) -> StepPlan | None:
        """The next step, or None if there is nothing to compute or as many steps as allowed are in flight.

        While there is a suspect that is not parked, only one is allowed.
        """
        if len(self.in_flight) >= self.steps_in_flight:
            return None
        suspect = self.suspects.next() if self.suspects.marked else None
        if suspect is not None and self.in_flight:
            return None
        batch = self._plan_together() if suspect is None else self._plan_alone(suspect)
        if not batch.rows:
            return None
        batch.copies = self.places.kv_cache_manager.take_copies()
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
            if not position and self.places.siblings.groups:
                self.places.siblings.fork(request)
            stop = request.stop_rules.check(token, position + 1, output)
            if stop is not None:
                delta = self._finish(request, [token], stop[0], stop[1])
            else:
                output.append(token)
                if position and not request.num_preemptions:
                    delta = TokenDelta(request.request_id, position, [token])
                else:
                    delta = request.delta(position, [token])
            deltas.append(delta)
        if result.logprobs or result.prompt_logprobs:
            add_logprobs(deltas, batch, result)
        if self.suspects.marked:
            self.suspects.clear(batch)
        return StepUpdate(deltas, failures)

    def _plan_alone(self, suspect: Request) -> Batch:
        """A step of a suspect and nothing else, while no other is in flight. It always has something to compute."""
        batch = Batch(self.next_step, self.max_num_batched_tokens)
        self._refused = ()  # whoever gives up its row for it keeps blocks that others may have
        if self.places.enter_first(suspect, self.max_running):
            self._count_admission(suspect)
            batch.add_new(suspect, batch.chunk_of(suspect))
        else:
            batch.add(suspect, batch.chunk_of(suspect), _NO_BLOCKS)
        self.suspects.alone = suspect
        return batch

    def _plan_together(self) -> Batch:
        """A step of all others; without rows if there is nothing to compute."""
        alone = len(self.places.running) + len(self.places.waiting) == 1
        batch = Batch(self.next_step, self.max_num_batched_tokens, 0 if alone else self._long_prefill)
        preemptions = self.places.num_preemptions
        if self._by_priority:
            self.precedence.promote()
            self.precedence.displace(self._oldest_step())
            preemptions = self.places.num_preemptions
        long = self._continue_running(batch)
        if self.places.num_preemptions == preemptions:
            self._admit(batch, long)
        self._catch_up(batch, long)
        return batch

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

    def _admit(self, batch: Batch, long: deque[Request]) -> None:
        """Let waiting requests in, in order of rank, as long as there are budget, rows, and blocks for all tokens known now.

        So whoever is admitted has all its prompt's blocks, and preemption is for what is generated only. Another block is kept
        free for each request that runs, or the new one would soon have to give way again. `long` get their tokens by rank too.
        """
        places, put_off = self.places, list[Request]()
        while places.waiting and len(places.running) < self.max_running and len(put_off) < MAX_PUT_OFF:
            request = places.waiting.first()
            self._catch_up(batch, long, before=request)
            now = (request.request_id, places.kv_cache_manager.pool.num_free, len(places.running), len(places.parked))
            if not batch.budget or request.last_step >= self._oldest_step() or now == self._refused:
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

    def _oldest_step(self) -> int:
        """The oldest step in flight; a request that is in it or in a later one has not got all its tokens yet."""
        return self.in_flight[0].step if self.in_flight else self.next_step

    def _count_admission(self, request: Request) -> None:
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = min(request.num_computed, len(request.prompt))
            self.precedence.admissions += 1

    def _finish(self, request: Request, tokens: list[int], reason: FinishReason, stop_reason: int | None = None) -> TokenDelta:
        """End a request; returns its last delta."""
        position = len(request.output)
        request.output.extend(tokens)
        self.places.release(request)
        return request.delta(position, tokens, reason, stop_reason)
