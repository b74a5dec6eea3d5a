"""Request: what the scheduler knows about one request."""

from collections import deque
from enum import Enum

from ..ipc.messages.outputs import FinishReason, TokenDelta
from ..ipc.messages.requests import AddRequest
from ..ipc.messages.sampling import SamplingParams
from .block_pool import CachedBlock, Parent
from .held_prompt import HeldPrompt
from .stop_rules import StopRules

NEVER = 1 << 62  # a position that no request reaches
NOT_NOW = NEVER - 1  # neither


class RequestState(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"  # for a row; holds blocks only where it kept them when it lost its row, or took them over
    RUNNING = "running"  # holds a row and blocks
    PARKED = "parked"  # as waiting, but its turn does not come
    FOLLOWING = "following"  # holds nothing, until the leader of its siblings has computed their prompt
    FINISHED = "finished"  # holds nothing; a step in flight may still name it


class Request:
    """State of one request. There is no prefill or decode phase: `num_computed` catches up with `num_schedulable`."""

    __slots__ = (
        "block_table",
        "clear_at",
        "computing",
        "deaths",
        "deaths_alone",
        "deaths_known",
        "extra_keys",
        "held",
        "last_step",
        "max_positions",
        "next_full",
        "num_cached_tokens",
        "num_computed",
        "num_in_flight",
        "num_keyed",
        "num_preemptions",
        "num_schedulable",
        "num_slots",
        "output",
        "params",
        "parent",
        "prompt",
        "rank",
        "reads_prefix_cache",
        "request_id",
        "root",
        "row",
        "session",
        "state",
        "stop_rules",
        "turn",
    )

    request_id: int
    prompt: list[int]
    output: list[int]  # tokens known so far, those delivered before a restart included
    session: int  # whose turn it is; 0: no session's
    params: SamplingParams
    stop_rules: StopRules
    state: RequestState
    row: int  # set only while running
    rank: tuple[int, int]  # priority that counts, number of arrival: lower ones come first
    turn: int  # once so many others have been admitted, it comes before all that have not waited as long
    num_computed: int  # positions whose KV is computed, or will be by a planned step
    num_schedulable: int  # positions whose token is known, or will be sampled by a planned step
    num_in_flight: int  # tokens that planned steps sample and whose result is still to come
    last_step: int  # number of the last planned step that it is in
    max_positions: int  # positions whose KV can ever be needed
    num_cached_tokens: int  # of the prompt, there already when it was first admitted; -1: never admitted yet
    deaths: int  # at which it was or may have been in flight, without progress since
    deaths_known: int  # those at which it certainly was
    deaths_alone: int  # those at which it was in flight alone
    clear_at: int  # positions to compute until that counts as progress; 0 without deaths
    num_preemptions: int
    reads_prefix_cache: bool  # else it computes all that it does not hold
    block_table: list[int]  # block ids in order of position
    held: HeldPrompt | None  # what it begins with, as long as there is any of it, when it enters a row without blocks
    num_slots: int  # positions that the block table covers
    root: tuple[str, ...]  # requests share blocks only under an equal one
    extra_keys: dict[int, tuple[str, ...]]  # by index of the block whose KV depends on them
    num_keyed: int  # blocks of the table, from the first, that were found in the prefix cache or offered to it
    parent: Parent  # what the key of the next one names
    next_full: int  # the position up to which that one reaches; NEVER, if none is to be offered; NOT_NOW, if a later turn may
    computing: deque[tuple[int, CachedBlock]]  # blocks offered before they were computed, and up to where they reach

    def __init__(self, request: AddRequest, *, max_model_len: int, block_size: int, number: int) -> None:
        """`number` counts the arrivals."""
        self.request_id = request.request
        self.prompt = request.prompt
        self.output = list(request.output)
        self.session = request.session
        self.params = request.params
        self.stop_rules = StopRules(request, max_model_len)
        self.state = RequestState.WAITING
        self.rank = (request.priority, number)
        self.turn = NEVER
        self.num_in_flight = 0
        self.last_step = -1
        self.num_schedulable = self.num_known
        # The last token ends the request, so nothing is ever computed from it.
        self.max_positions = len(request.prompt) + self.stop_rules.max_output - 1
        self.num_cached_tokens = -1
        self.deaths = request.deaths
        self.deaths_known = self.deaths_alone = request.deaths_alone
        self.clear_at = self.num_known if request.deaths else 0
        self.num_preemptions = 0
        self.reads_prefix_cache = request.params.reads_prefix_cache
        self.root = (request.cache_salt,)
        self.extra_keys = {}
        for extra in request.cache_keys:
            index, offset = divmod(extra.position, block_size)  # the positions of a block before it do not depend on it
            self.extra_keys[index] = (*self.extra_keys.get(index, ()), f"{offset}:{extra.key}")
        self.held = None
        self.block_table = []
        self.computing = deque()
        self.lose_blocks()

    @property
    def num_known(self) -> int:
        """Tokens known: prompt, and output whose result is there."""
        return len(self.prompt) + len(self.output)

    @property
    def beginning(self) -> HeldPrompt | None:
        """What it begins with if it enters a row now, unless more of it is found elsewhere."""
        held = self.held
        return held if held is not None and held.block_table and not self.block_table else None

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Known tokens from position `start` to `end`, which is excluded."""
        length = len(self.prompt)
        if end <= length:
            return tuple(self.prompt[start:end])
        return (*self.prompt[start:], *self.output[max(start - length, 0) : end - length])

    def delta(
        self, position: int, tokens: list[int], finish_reason: FinishReason | None = None, stop_reason: int | None = None
    ) -> TokenDelta:
        """News of the request: these tokens, if any, from output position `position` on."""
        cached = 0 if position else max(self.num_cached_tokens, 0)
        return TokenDelta(
            self.request_id, position, tokens, finish_reason, stop_reason, cached, preemptions=self.num_preemptions
        )

    def lose_blocks(self) -> None:
        """It holds no blocks any more, and nothing of it is computed."""
        self.block_table = []
        self.num_slots = 0
        self.num_computed = 0
        self.num_keyed = 0
        self.parent = self.root
        self.next_full = NEVER
        self.computing.clear()
