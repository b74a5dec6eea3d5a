"""check_integrity: recounts everything that the scheduler keeps count of."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from .context import Context
from .places import Holder, Places
from .request import NEVER, NOT_NOW, Request, RequestState
from .scheduler import Scheduler
from .suspects import SUSPECT, Suspects


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
    """Raise IntegrityError, with the numbers, if blocks, cache, rows, queues, counts, sessions or suspects do not add up."""
    places = scheduler.places
    _check_queues(places)
    rows = places.row_pool
    _expect_partition("rows", rows.num_rows, rows.free_rows(), (request.row for request in places.running))
    requests = places.requests.values()
    _check_blocks(places)
    samples = Counter(id(request) for batch in scheduler.in_flight for request in batch.sampled)
    for request in requests:
        _check_counts(request, samples[id(request)], places.kv_cache_manager.block_size)
    _check_siblings(places)
    _check_held(places)
    _check_sessions(places)
    _check_writes(places)
    _check_steps(scheduler)
    _check_suspects(scheduler.suspects, requests)
    _check_alone(scheduler)


def _check_blocks(places: Places) -> None:
    """Every block is free or held, as often as it has references, and what can be found is where it is said to be."""
    pool, requests = places.kv_cache_manager.pool, places.requests.values()
    holders: list[Holder] = [*requests, *places.siblings.held, *places.sessions.contexts.values()]
    held = Counter(block for holder in holders for block in holder.block_table)
    _expect_partition("blocks", pool.num_blocks, pool.free_blocks(), held)
    wrong = [block for block in range(pool.num_blocks) if pool.references(block) != held[block]]
    _expect(not wrong, f"blocks whose references are not the requests that hold them: {wrong}")
    kept = {request.request_id for request in places.waiting if request.block_table}
    _expect(kept == places.kept.keys(), f"requests {sorted(kept)} wait with blocks, known are {sorted(places.kept)}")
    entries = pool.entries()
    blocks = Counter(entry.block for entry in entries)
    _expect(not blocks or max(blocks.values()) == 1, f"blocks with two contents: {[b for b, n in blocks.items() if n > 1]}")
    for entry in entries:
        _expect(pool.find(entry.key) is entry, f"block {entry.block} is not found under its key")
    computing = {id(entry): request for request in requests for _, entry in request.computing}
    for entry in entries:
        _expect(
            entry.ready != (id(entry) in computing),
            f"block {entry.block} is {'ready' if entry.ready else 'not ready'}, and {id(entry) in computing=}",
        )
    free, blank = set(pool.free_blocks()), set(pool.blank_blocks())
    lost = (free - blank) ^ (free & blocks.keys())
    _expect(not lost, f"free blocks with content among those without, or the other way round: {sorted(lost)}")


def _check_queues(places: Places) -> None:
    """Each unfinished request is in one queue, with the queue's state, and the queues are sorted."""
    for number, request in places.parked.items():
        _expect(number == request.request_id, f"request {request.request_id} is parked as {number}")
    for ranked in (places.running, places.waiting):
        ranks = [request.rank for request in ranked]
        _expect(ranks == sorted(set(ranks)), f"ranks out of order: {ranks}")
    queues = (
        (RequestState.RUNNING, places.running),
        (RequestState.WAITING, places.waiting),
        (RequestState.PARKED, places.parked.values()),
        (RequestState.FOLLOWING, _following(places)),
    )
    queued: Counter[int] = Counter()
    for state, queue in queues:
        for request in queue:
            queued[request.request_id] += 1
            _expect(request.state is state, f"request {request.request_id} is {request.state} in the {state} queue")
            _expect(
                places.requests.get(request.request_id) is request,
                f"request {request.request_id} is {state} but not registered",
            )
    _expect(
        queued == Counter(places.requests.keys()),
        f"registered: {sorted(places.requests)}, queued: {sorted(queued.elements())}",
    )


def _following(places: Places) -> list[Request]:
    """Those in groups, but for who has left and is still in the list."""
    groups = places.siblings.groups.values()
    return [request for group in groups for request in group if request.state is RequestState.FOLLOWING]


def _check_siblings(places: Places) -> None:
    """Each group is led by a request that is to compute its prompt and is older; those that follow hold nothing."""
    for number, group in places.siblings.groups.items():
        leader = places.requests.get(number)
        _expect(
            leader is not None and leader.state in (RequestState.RUNNING, RequestState.WAITING) and not leader.output,
            f"siblings follow request {number}, which computes no prompt",
        )
        assert leader is not None
        for request in group:
            name = f"request {request.request_id}, which follows request {number},"
            _expect(
                request.state is not RequestState.FOLLOWING or not (request.block_table or request.output),
                f"{name} holds {len(request.block_table)} blocks and {len(request.output)} tokens of output",
            )
            _expect(request.prompt == leader.prompt, f"{name} has another prompt")
            _expect(request.rank[1] > leader.rank[1], f"{name} is older")


def _check_held(places: Places) -> None:
    """Each held prompt is for some unfinished requests, all of whose prompts it is."""
    members = Counter(request.held for request in places.requests.values() if request.held is not None)
    for held in members.keys() | places.siblings.held.keys():
        numbers = [request.request_id for request in places.requests.values() if request.held is held]
        name = f"the prompt held for requests {numbers}"
        _expect(held.members == len(numbers) > 0, f"{name} is said to be for {held.members}")
        _expect((held in places.siblings.held) == bool(held.block_table), f"{name} has blocks {held.block_table}")
        wrong = [number for number in numbers if len(places.requests[number].prompt) != held.num_computed + 1]
        _expect(not wrong, f"{name} has {held.num_computed} positions, all but one of the prompt, not so of {wrong}")


def _check_sessions(places: Places) -> None:
    """A session has a turn, which is unfinished and the only one, or tokens, and maybe blocks that cover what is computed."""
    sessions = places.sessions
    turns = {request.session: request for request in places.requests.values() if request.session in sessions.contexts}
    for number, context in sessions.contexts.items():
        name = f"session {number}"
        _expect(context.session == number, f"session {context.session} is known as {number}")
        turn = context.turn
        _expect(turn is turns.get(number), f"{name} has turn {turn and turn.request_id}, which is not its unfinished one")
        _expect(
            turn is None or not (context.block_table or context.token_ids),
            f"{name} has a turn, and keeps {len(context.block_table)} blocks and {len(context.token_ids)} tokens beside it",
        )
        _check_context(context, places.kv_cache_manager.block_size)
    wanted = sorted(request.request_id for request in places.requests.values() if request.session)
    _expect(
        wanted == sorted(turn.request_id for turn in turns.values()),
        f"turns {wanted} are unfinished, of open sessions only {sorted(turn.request_id for turn in turns.values())}",
    )
    idle = {number for number, context in sessions.contexts.items() if context.block_table}
    evicted = {number for number, context in sessions.contexts.items() if context.token_ids} - idle
    _expect(sessions.idle.keys() == idle, f"sessions {sorted(idle)} keep blocks, known are {sorted(sessions.idle)}")
    _expect(sessions.evicted == evicted, f"sessions {sorted(evicted)} keep tokens alone, known are {sorted(sessions.evicted)}")


def _check_context(context: Context, block_size: int) -> None:
    """A context's counts agree with its tokens and blocks."""
    name, blocks, full = f"session {context.session}", len(context.block_table), context.num_computed // block_size
    _expect(
        context.num_computed <= len(context.token_ids) and blocks == -(-context.num_computed // block_size),
        f"{name} has {blocks} blocks of {block_size} for {context.num_computed} computed of {len(context.token_ids)} tokens",
    )
    _expect(
        context.num_keyed <= full and context.next_full in (NEVER, NOT_NOW, (context.num_keyed + 1) * block_size),
        f"{name} offers {context.num_keyed} of {full} full blocks, the next up to {context.next_full}",
    )


def _check_writes(places: Places) -> None:
    """Nobody else holds a block that is still to be written to, but for whoever is to copy it before it writes, and of which it
    knows no more than is written already.
    """
    manager, requests = places.kv_cache_manager, places.requests.values()
    copying: list[Request | Context] = [one for one in requests if one.session and one.num_cached_tokens < 0]
    copying += places.sessions.contexts.values()
    held = Counter(prompt.block_table[-1] for prompt in places.siblings.held)
    known: defaultdict[int, list[int]] = defaultdict(list)
    for one in copying:
        if one.block_table:
            known[one.block_table[-1]].append(one.num_computed)
    for request in requests:
        if request.session and request.num_cached_tokens < 0:
            continue
        own = request.block_table[request.num_computed // manager.block_size :]
        spared = {block: held[block] + sum(end <= request.num_computed for end in known[block]) for block in own}
        shared = [block for block in own if manager.pool.references(block) > 1 + spared[block]]
        _expect(not shared, f"request {request.request_id} will write to blocks {shared}, which others hold")


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
    _expect(
        -(-request.num_computed // block_size) <= blocks <= -(-request.max_positions // block_size)
        and request.num_slots == blocks * block_size,
        f"{name} has {blocks} blocks of {block_size} and {request.num_slots} slots for {request.num_computed} computed tokens "
        f"and {request.max_positions} positions at most",
    )
    _expect(
        request.state is not RequestState.RUNNING or request.num_slots >= known or request.num_computed >= known - 1,
        f"{name} runs with {request.num_slots} slots for {known} tokens known",
    )
    _expect(request.num_keyed <= blocks, f"{name} offers {request.num_keyed} of {blocks} blocks")


def _check_steps(scheduler: Scheduler) -> None:
    """Steps in flight are bounded and consecutive, and no more requests run than a step has tokens for."""
    steps = [batch.step for batch in scheduler.in_flight]
    _expect(
        steps == list(range(scheduler.next_step - len(steps), scheduler.next_step)) and len(steps) <= scheduler.steps_in_flight,
        f"steps {steps} in flight, at most {scheduler.steps_in_flight} allowed, the next is {scheduler.next_step}",
    )
    running = len(scheduler.places.running)
    _expect(running <= scheduler.max_running, f"{running} requests run, at most {scheduler.max_running} may")


def _check_suspects(suspects: Suspects, requests: Collection[Request]) -> None:
    """All requests with deaths are known as such, and can be cleared."""
    marked = [request.request_id for request in suspects.marked if request.state is not RequestState.FINISHED]
    wanted = [request.request_id for request in requests if request.deaths]
    _expect(sorted(marked) == sorted(wanted), f"requests with deaths: {sorted(wanted)}, marked: {sorted(marked)}")
    for request in requests:
        _expect(
            0 < request.clear_at <= request.max_positions if request.deaths else not request.clear_at,
            f"request {request.request_id} with {request.deaths} deaths is cleared at position {request.clear_at} of at most "
            f"{request.max_positions}",
        )


def _check_alone(scheduler: Scheduler) -> None:
    """A step in flight that holds a suspect holds nothing else, is the only one, and is known as such."""
    alone = scheduler.suspects.alone
    steps = [batch.requests for batch in scheduler.in_flight]
    names = [[request.request_id for request in requests] for requests in steps]
    if alone is not None:
        _expect(steps == [[alone]], f"request {alone.request_id} is said to be in flight alone, but steps hold {names}")
    others = [request for requests in steps for request in requests if request is not alone]
    loose = [request.request_id for request in others if request.deaths >= SUSPECT]
    _expect(not loose, f"suspects {loose} are in flight with others: {names}")
