"""Scheduler: decides what each step computes, and turns its results into news for the requests.

There is no prefill or decode phase. Each request has positions to catch up with, under one token budget a step: running
requests first, then waiting ones as long as budget, rows and blocks last.
"""

from collections import deque

from ..ipc.messages.config import CacheConfig, SchedulerConfig
from ..ipc.messages.outputs import FinishReason, TokenDelta
from ..ipc.messages.plans import StepPlan
from ..ipc.messages.requests import AddRequest
from ..ipc.messages.results import StepResult
from .batch import Batch
from .errors import DoesNotFit, DuplicateRequest, RequestTooLong, ResultMismatch
from .kv_cache_manager import KVCacheManager
from .outputs import RequestFailure, Stats, StepUpdate
from .queues import WaitingQueue
from .request import Request, RequestState
from .rows import RowPool


class Scheduler:
    """Call add, abort, park and unpark at any time, schedule for the next plan, and update with each plan's result, in order.

    The attributes are for check_integrity and for reading. A running request always gets what it needs and so always
    gets on: its blocks are reserved (see KVCacheManager), and so is a token of each step's budget (see _admit).
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
        self.kv_cache_manager = KVCacheManager(num_blocks, cache.block_size)
        self.row_pool = RowPool(scheduler.max_num_seqs)
        self.requests: dict[int, Request] = {}  # all that are not finished
        self.running: dict[int, Request] = {}  # in order of admission
        self.waiting = WaitingQueue()
        self.parked: dict[int, Request] = {}  # the one parked longest first
        self.in_flight: deque[Batch] = deque()
        self.next_step = 0

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished or a step's result is still to come."""
        return bool(self.requests or self.in_flight)

    def stats(self) -> Stats:
        """Numbers of this moment."""
        pool = self.kv_cache_manager.pool
        return Stats(
            running=len(self.running),
            waiting=len(self.waiting) + len(self.parked),
            num_blocks=pool.num_blocks,
            free_blocks=pool.num_free,
            steps=self.next_step - len(self.in_flight),
            parked=len(self.parked),
        )

    def add(self, request: AddRequest) -> TokenDelta | None:
        """Let a request wait for its turn.

        Returns None; but if the output that it brings along already ends it, nothing is added, and the delta that says
        so (without tokens) is returned. Raises RequestTooLong, DoesNotFit or DuplicateRequest, or ValueError for an
        empty prompt; then nothing has changed.
        """
        if request.request in self.requests:
            raise DuplicateRequest(request.request, request.external_id)
        prompt_tokens = len(request.prompt)
        if not prompt_tokens:
            raise ValueError("prompt must hold at least one token, got none")
        if prompt_tokens >= self.max_model_len:
            raise RequestTooLong(prompt_tokens=prompt_tokens, max_model_len=self.max_model_len)
        new = Request(request, self.max_model_len)
        if new.output:
            stop = new.stop_rules.check(new.output[-1], len(new.output))
            if stop is not None:
                return TokenDelta(new.request_id, len(new.output), [], stop[0], stop[1])
        manager = self.kv_cache_manager
        blocks = manager.blocks_for(new.max_positions)
        if blocks > manager.pool.num_blocks:
            raise DoesNotFit(
                prompt_tokens=prompt_tokens,
                tokens=new.max_positions + 1,
                blocks=blocks,
                num_blocks=manager.pool.num_blocks,
                block_size=manager.block_size,
            )
        self.requests[new.request_id] = new
        self.waiting.push(new)
        return None

    def abort(self, request: int) -> bool:
        """Forget a request and free what it holds. False if it is unknown or has finished already.

        Safe while a step with the request is in flight; its late tokens are dropped.
        """
        found = self.requests.get(request)
        if found is None:
            return False
        self._release(found)
        return True

    def park(self, request: int) -> bool:
        """Schedule a request no more until `unpark`. False if it is unknown or has finished already.

        It gives up its row at once, but keeps its blocks until others need them. Safe while a step with the request is in
        flight; its late tokens are delivered as ever.
        """
        found = self.requests.get(request)
        if found is None:
            return False
        if found.state is not RequestState.PARKED:
            self._leave(found)
            found.state = RequestState.PARKED
            self.parked[request] = found
        return True

    def unpark(self, request: int) -> bool:
        """Let a parked request go on, before all that have had no turn yet. False if it is not parked."""
        found = self.parked.get(request)
        if found is None:
            return False
        self._leave(found)
        found.state = RequestState.WAITING
        self.waiting.push_returning(found)
        return True

    def schedule(self) -> StepPlan | None:
        """The next step, or None if there is nothing to compute or as many steps as allowed are in flight."""
        if len(self.in_flight) >= self.steps_in_flight:
            return None
        batch = Batch(self.next_step, self.max_num_batched_tokens)
        self._continue_running(batch)
        self._admit(batch)
        if not batch.rows:
            return None
        self.next_step += 1
        self.in_flight.append(batch)
        return batch.plan()

    def update(self, result: StepResult) -> StepUpdate:
        """Apply the oldest step's result. Raises ResultMismatch, changing nothing, if it is not that step's."""
        batch = self._take_batch(result)
        deltas: list[TokenDelta] = []
        failures: list[RequestFailure] = []
        finished = RequestState.FINISHED
        for failure in result.failures:
            request = batch.requests[failure.index]
            if request.state is not finished:
                failures.append(RequestFailure(request.request_id, failure))
                deltas.append(self._finish(request, [], "error"))
        for request, token in zip(batch.sampled, result.tokens, strict=True):
            request.num_in_flight -= 1
            if request.state is finished:
                continue  # failed, aborted, or ended by the result before this one
            output = request.output
            position = len(output)
            stop = request.stop_rules.check(token, position + 1)
            if stop is None:
                output.append(token)
                deltas.append(TokenDelta(request.request_id, position, [token]))
            else:
                deltas.append(self._finish(request, [token], stop[0], stop[1]))
        return StepUpdate(deltas, failures)

    def _continue_running(self, batch: Batch) -> None:
        """Give each running request its next token, or as much of its prompt as the budget allows."""
        for request in self.running.values():
            start = request.num_computed
            count = request.num_schedulable - start
            if not count:
                continue  # its last token is in flight
            if count > batch.budget:
                count = batch.budget
                assert count, f"{len(self.running)} running requests outnumber the budget of a step"
            end = start + count
            blocks = self.kv_cache_manager.allocate(request, end) if end > request.num_slots else []
            batch.add(request, count, blocks)

    def _admit(self, batch: Batch) -> None:
        """Let waiting requests in, in order, as long as there are budget, rows and blocks.

        A request is admitted only with at least one token of budget left after all others. So requests with something
        to compute never outnumber the budget, and at most one, the last admitted, has more than a token to catch up
        with at a later step: going through them in order serves every one at every step.
        """
        while batch.budget and self.waiting and len(self.running) < self.row_pool.num_rows:
            request = self.waiting.peek()
            # Later ones, though smaller, wait behind it, or it might wait for ever. A token in flight is short of a NewRow.
            if request.num_in_flight or not self._reserve(request):
                break
            self._leave(request)
            self.running[request.request_id] = request
            request.state = RequestState.RUNNING
            request.row = self.row_pool.take()
            count = min(request.num_schedulable - request.num_computed, batch.budget)
            self.kv_cache_manager.allocate(request, request.num_computed + count)
            batch.add_new(request, count)

    def _reserve(self, request: Request) -> bool:
        """Reserve the worst case of a waiting request, if need be at the cost of others that hold blocks without a row.

        False, and nobody has lost anything, if even that is not enough. What it kept from before counts, of course.
        """
        manager = self.kv_cache_manager
        if request.num_reserved_blocks or manager.reserve(request):
            return True
        candidates = (*self.parked.values(), *self.waiting.last_returning_first())
        victims = [victim for victim in candidates if victim.num_reserved_blocks]
        if sum(victim.num_reserved_blocks for victim in victims) < manager.missing(request):
            return False
        while not manager.reserve(request):
            self._take_blocks(victims.pop(0))
        return True

    def _take_blocks(self, request: Request) -> None:
        """Let others have the blocks of a request without a row; it will compute its tokens again."""
        self.kv_cache_manager.free(request)
        request.num_computed = 0

    def _leave(self, request: Request) -> None:
        """Take a live request out of the place that its state names; a running one gives up its row, and keeps its blocks."""
        match request.state:
            case RequestState.WAITING:
                self.waiting.remove(request)
            case RequestState.PARKED:
                del self.parked[request.request_id]
            case RequestState.RUNNING:
                del self.running[request.request_id]
                self.row_pool.free(request.row)

    def _finish(self, request: Request, tokens: list[int], reason: FinishReason, stop_reason: int | None = None) -> TokenDelta:
        """End a request; returns its last delta."""
        position = len(request.output)
        request.output.extend(tokens)
        self._release(request)
        return TokenDelta(request.request_id, position, tokens, reason, stop_reason)

    def _release(self, request: Request) -> None:
        """Free what a request holds.

        Row and blocks may go to another request in the very next plan, even while a step in flight still writes to
        them: workers execute plans strictly in order, so that step's writes, KV and token alike, are done before
        the next owner's row is set up, and the next owner reads no position that it has not written itself.
        """
        self._leave(request)
        self.kv_cache_manager.free(request)
        request.state = RequestState.FINISHED
        del self.requests[request.request_id]

    def _take_batch(self, result: StepResult) -> Batch:
        """Remove and return the oldest step in flight, having checked that the result is its."""
        if not self.in_flight:
            raise ResultMismatch(f"result of step {result.step}, but no step is in flight")
        batch = self.in_flight[0]
        if result.step != batch.step:
            raise ResultMismatch(f"result of step {result.step}, but step {batch.step} is the oldest in flight")
        if len(result.tokens) != len(batch.sampled):
            raise ResultMismatch(f"step {batch.step} samples {len(batch.sampled)} tokens, got {len(result.tokens)}")
        for failure in result.failures:
            if not 0 <= failure.index < len(batch.requests):
                raise ResultMismatch(f"step {batch.step} has {len(batch.requests)} rows, failure names {failure.index}")
        return self.in_flight.popleft()
