"""Scheduler: decides what each step computes, and turns its results into news for the requests.

There is no prefill or decode phase. Each request has positions to catch up with, under one token budget a step: running
requests first, then waiting ones as long as budget, rows and blocks last; see planner.py.
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
from .planner import Planner
from .precedence import Precedence
from .request import Request, RequestState
from .suspects import Suspects


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
        self.in_flight: deque[Batch] = deque()
        self.places = Places(num_blocks, cache, num_rows=scheduler.max_num_seqs, in_flight=self.in_flight)
        self.precedence = Precedence(self.places, self.max_running)
        self.suspects = Suspects()
        self.next_step = 0
        self._arrivals = Arrivals(max_model_len=max_model_len, by_priority=scheduler.scheduling_policy == "priority")
        self._planner = Planner(scheduler, self.places, self.precedence, self.suspects, self.max_running)
        self._steps_lost = 0  # that have no result and will have none

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
            sessions=len(self.places.sessions.contexts),
            sessions_evicted=len(self.places.sessions.evicted),
        )

    def add(self, request: AddRequest) -> TokenDelta | None:
        """Let a request wait for its turn, and its siblings for their prompt's KV.

        Returns None; but if the output that it brings along already ends it, it is not added, and the delta that says
        so (without tokens) is returned. Raises RequestTooLong, DoesNotFit or DuplicateRequest, ValueError for an empty prompt,
        or SessionMismatch for a turn that cannot be one; then nothing has changed.
        """
        if request.session:
            request = self.places.sessions.whole(request)
        group = self._arrivals.make(request, self.places.kv_cache_manager, self.places.requests)
        new, ended = group[0], None
        if new.output:
            stop = new.stop_rules.check(new.output[-1], len(new.output), new.output[:-1])
            if stop is not None:
                ended = new.delta(len(new.output), [], stop[0], stop[1])
        unfinished = group[ended is not None :]
        for ahead, member in enumerate(unfinished):
            self.precedence.set_turn(member, ahead)
        if request.session:  # all that may fail has been done: the session and the queues agree about its turn
            self.places.sessions.begin(new, request.base)
        if ended is not None:
            self.places.give_back(new)
        elif new.output:  # it is past what the others could share
            self.places.add(new)
        sharing = group[bool(new.output) :]
        if sharing:
            self.places.add_group(sharing[0], sharing[1:])
        self.suspects.marked += [member for member in unfinished if member.deaths]
        return ended

    def abort(self, request: int) -> bool:
        """Forget a request and free what it holds. False if it is unknown or has finished already.

        Safe while a step with the request is in flight; its late tokens are dropped.
        """
        found = self.places.requests.get(request)
        if found is None:
            return False
        self._planner.refused = ()  # what it shared may be there for others now; so below
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
            self._planner.refused = ()
            self.places.park(found)
        return True

    def unpark(self, request: int) -> bool:
        """Let a parked request go on when its turn comes, by the rank it always had. False if it is not parked."""
        found = self.places.parked.get(request)
        if found is None:
            return False
        self.places.wait_again(found)
        return True

    def fork_session(self, session: int, child: int, length: int) -> None:
        """Open a session that begins with so many tokens of another one's context, sharing its blocks.

        What is known of that one's turn belongs to its context. Raises SessionMismatch, and nothing has changed, if it is not
        that long or the child is open already.
        """
        self.places.sessions.fork(session, child, length)

    def truncate_session(self, session: int, length: int) -> None:
        """Let go of a session's context behind so many tokens. Nothing happens to one that is unknown or has a turn."""
        self._planner.refused = ()
        self.places.sessions.truncate(session, length)

    def close_session(self, session: int) -> int | None:
        """Forget a session and free what it holds, its turn too, whose number is returned. Unknown ones are ignored."""
        self._planner.refused = ()
        turn = self.places.sessions.close(session)
        if turn is None:
            return None
        self.places.release(turn)
        return turn.request_id

    def open_sessions(self) -> list[int]:
        """The numbers of all sessions."""
        return list(self.places.sessions.contexts)

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> None:
        """Let no request find what was computed so far. Those that run go on with what they have, or, with `preempt_running`,
        compute it again. So do sessions between two turns. What is computed behind it is not found either: a session that goes
        on offers nothing until it has lost its KV.
        """
        self.places.reset_prefix_cache(preempt_running=preempt_running)

    def restart(self) -> list[int]:
        """The workers were replaced, or have forgotten everything: no step in flight has a result, and no block its content.

        Sessions keep their tokens. Unfinished requests wait again, or stay parked, with the tokens they have; the next ones
        are what they would have been. Those that were in flight have a death more. Returns the requests that ended instead,
        without a delta: the one that was in flight alone (see suspects.py). Step numbers go on, so that a late result is a
        ResultMismatch.
        """
        convicted = self.suspects.blame(self.in_flight)
        self._steps_lost += len(self.in_flight)
        self.in_flight.clear()
        self._planner.refused = ()
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
        batch = self._planner.plan(self.next_step, self.in_flight[0].step if self.in_flight else self.next_step, suspect)
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
            self._planner.refused = ()  # it may find more now
        for request, token in zip(batch.sampled, result.tokens, strict=True):
            request.num_in_flight -= 1
            if request.state is finished:
                continue  # failed, aborted, or ended by the result before this one
            output = request.output
            position = len(output)
            end = len(request.prompt) + position
            if end >= request.next_full:
                self.places.kv_cache_manager.computed(request, end)
                self._planner.refused = ()
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

    def _finish(self, request: Request, tokens: list[int], reason: FinishReason, stop_reason: int | None = None) -> TokenDelta:
        """End a request; returns its last delta."""
        position = len(request.output)
        request.output.extend(tokens)
        self._planner.refused = ()
        self.places.release(request)
        return request.delta(position, tokens, reason, stop_reason)
