"""check_integrity: recounts everything that the scheduler keeps count of."""

from collections import Counter
from collections.abc import Iterable

from .request import Request, RequestState
from .scheduler import Scheduler


class IntegrityError(AssertionError):
    """The scheduler's books do not add up. Always a bug in this package."""


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise IntegrityError(message)


def _expect_partition(what: str, size: int, free: Iterable[int], held: Iterable[int]) -> None:
    """Each of 0 .. size - 1 is either free or held, once."""
    free, held = sorted(free), sorted(held)
    counts = Counter(free + held)
    wrong = sorted(item for item in counts.keys() | range(size) if counts[item] != 1 or not 0 <= item < size)
    _expect(not wrong, f"{what} missing, foreign or held twice: {wrong}; {len(free)} free, {len(held)} held of {size}")


def check_integrity(scheduler: Scheduler) -> None:
    """Raise IntegrityError, with the numbers, if blocks, reservations, rows, queues or counts do not add up."""
    _check_queues(scheduler)
    requests = scheduler.requests.values()
    manager = scheduler.kv_cache_manager
    pool = manager.pool
    rows = scheduler.row_pool
    _expect_partition("rows", rows.num_rows, rows.free_rows(), (request.row for request in scheduler.running.values()))
    held = (block for request in requests for block in request.block_table)
    _expect_partition("blocks", pool.num_blocks, pool.free_blocks(), held)
    reserved = sum(request.num_reserved_blocks for request in requests)
    _expect(
        reserved == manager.num_reserved <= pool.num_blocks,
        f"requests reserve {reserved} blocks, the manager counts {manager.num_reserved} of {pool.num_blocks}",
    )
    samples = Counter(id(request) for batch in scheduler.in_flight for request in batch.sampled)
    for request in requests:
        _check_counts(request, samples[id(request)], manager.block_size)
    _check_steps(scheduler)


def _check_queues(scheduler: Scheduler) -> None:
    """Each unfinished request is in one queue, under its number and with the queue's state."""
    for number, request in scheduler.running.items():
        _expect(number == request.request_id, f"request {request.request_id} runs as {number}")
    for number, request in scheduler.parked.items():
        _expect(number == request.request_id, f"request {request.request_id} is parked as {number}")
    queues = (
        (RequestState.RUNNING, scheduler.running.values()),
        (RequestState.WAITING, scheduler.waiting),
        (RequestState.PARKED, scheduler.parked.values()),
    )
    queued: Counter[int] = Counter()
    for state, queue in queues:
        for request in queue:
            queued[request.request_id] += 1
            _expect(request.state is state, f"request {request.request_id} is {request.state} in the {state} queue")
            _expect(
                scheduler.requests.get(request.request_id) is request,
                f"request {request.request_id} is {state} but not registered",
            )
    _expect(
        queued == Counter(scheduler.requests.keys()),
        f"registered: {sorted(scheduler.requests)}, queued: {sorted(queued.elements())}",
    )


def _check_counts(request: Request, num_sampling: int, block_size: int) -> None:
    """A request's counts agree with its tokens, its blocks and the steps in flight."""
    name = f"request {request.request_id}"
    _expect(
        num_sampling == request.num_in_flight,
        f"{name} counts {request.num_in_flight} tokens in flight, the steps {num_sampling}",
    )
    known = len(request.prompt) + len(request.output)
    schedulable = min(known + num_sampling, request.max_positions)
    _expect(
        schedulable == request.num_schedulable,
        f"{name} has {known} tokens and {num_sampling} in flight, at most {request.max_positions} positions, but "
        f"{request.num_schedulable} schedulable",
    )
    _expect(
        request.num_computed <= schedulable,
        f"{name} has computed {request.num_computed} of {schedulable} positions",
    )
    blocks = len(request.block_table)
    wanted = -(-request.num_computed // block_size)
    _expect(
        blocks == wanted <= request.num_reserved_blocks and request.num_slots == blocks * block_size,
        f"{name} has {blocks} blocks of {block_size} and {request.num_slots} slots for {request.num_computed} computed "
        f"tokens, {request.num_reserved_blocks} blocks reserved",
    )
    _expect(
        bool(request.num_reserved_blocks) == bool(request.num_computed),
        f"{name} is {request.state} and reserves {request.num_reserved_blocks} blocks with {request.num_computed} computed",
    )


def _check_steps(scheduler: Scheduler) -> None:
    """Steps in flight are bounded and consecutive, and the budget has a token for every request that needs one."""
    steps = [batch.step for batch in scheduler.in_flight]
    _expect(
        steps == list(range(scheduler.next_step - len(steps), scheduler.next_step)) and len(steps) <= scheduler.steps_in_flight,
        f"steps {steps} in flight, at most {scheduler.steps_in_flight} allowed, the next is {scheduler.next_step}",
    )
    hungry = sum(request.num_computed < request.num_schedulable for request in scheduler.running.values())
    _expect(
        hungry <= scheduler.max_num_batched_tokens,
        f"{hungry} running requests need a token a step, the budget is {scheduler.max_num_batched_tokens}",
    )
