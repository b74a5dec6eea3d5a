"""A worker without a model: it knows nothing but the plans, and checks that each row reads the KV that its own tokens make."""

import zlib
from array import array
from collections.abc import Collection
from dataclasses import dataclass, field

from ringpost.ipc.messages.outputs import TokenLogprobs
from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.results import PromptLogprobs, RowFailure, StepResult
from ringpost.ipc.messages.sampling import RepetitionDetectionParams

VOCABULARY = 10
SPOILT = -1


def token_at(seed: int, position: int) -> int:
    """The token that a request samples as its output's `position`-th, whatever the batch."""
    return zlib.crc32(f"{seed}:{position}".encode()) % VOCABULARY


def answer(request: AddRequest, max_model_len: int) -> tuple[list[int], str, int | None]:
    """What a request must get, whatever happens: tokens, finish reason, stop reason."""
    params = request.params
    assert params.seed is not None
    tokens: list[int] = []
    while True:
        token = token_at(params.seed, len(tokens))
        tokens.append(token)
        may_stop = len(tokens) > params.min_tokens
        if may_stop and not params.ignore_eos and token in request.eos_token_ids:
            return tokens, "stop", None
        if may_stop and token in params.stop_token_ids:
            return tokens, "stop", token
        if len(request.prompt) + len(tokens) >= max_model_len or len(tokens) == params.max_tokens:
            return tokens, "length", None
        if len(tokens) >= params.min_tokens and repeats(tokens, params.repetition_detection):
            return tokens, "repetition", None


def repeats(tokens: list[int], rule: RepetitionDetectionParams | None) -> bool:
    """Whether the tokens end in a pattern as often as the rule says."""
    if rule is None:
        return False
    sizes = range(rule.min_pattern_size, rule.max_pattern_size + 1)
    return any(
        len(tokens) >= size * rule.min_count and tokens[-size * rule.min_count :] == tokens[-size:] * rule.min_count
        for size in sizes
    )


def logprobs_of(token: int, position: int, count: int, vocabulary: int = VOCABULARY) -> TokenLogprobs:
    """What is said of a token at a position of prompt and answer, with so many of the likeliest; -1: the whole vocabulary."""
    ids = range(vocabulary if count < 0 else count)
    likely = array("f", [-0.25 * (index + position % 4) for index in ids])
    return TokenLogprobs(-0.5 * token, 1 + position, b"" if count < 0 else array("i", ids).tobytes(), likely.tobytes())


def kv_after(last: int, token: int, keys: tuple[str, ...] = ()) -> int:
    """What the slot of a token holds after the one that holds `last`. The same in every process, but for `keys`."""
    return hash((last, token, keys)) & ((1 << 62) - 1)


def kv_of(request: AddRequest, tokens: list[int]) -> list[int]:
    """What the slots of a request hold: each depends on all tokens up to its own, and on what else KV may depend on."""
    kv, last = [], hash(request.cache_salt)
    for position, token in enumerate(tokens):
        keys = tuple(sorted(extra.key for extra in request.cache_keys if extra.position == position))
        last = kv_after(last, token, keys)
        kv.append(last)
    return kv


@dataclass
class Row:
    """A worker's persistent row."""

    request: AddRequest
    tokens: list[int]
    blocks: list[int]
    computed: int
    failed: bool = False


@dataclass
class SlotWorker:
    """Executes plans in order over a slot memory. `requests` has all that were ever added, for what no plan says of them.

    A row that fails writes garbage, which nobody may read.
    """

    block_size: int
    num_blocks: int
    max_num_seqs: int
    requests: dict[int, AddRequest]
    vocabulary: int = VOCABULARY
    rows: dict[int, Row] = field(default_factory=dict)
    slots: dict[tuple[int, int], int] = field(default_factory=dict)

    def successor(self) -> "SlotWorker":
        """A worker that takes the place of this one: it has no rows, and garbage in its memory."""
        memory = {(block, place): SPOILT for block in range(self.num_blocks) for place in range(self.block_size)}
        return SlotWorker(self.block_size, self.num_blocks, self.max_num_seqs, self.requests, slots=memory)

    def execute(self, plan: StepPlan, failing: Collection[int] = ()) -> StepResult:
        """Make a step. `failing` are indices into the plan's rows."""
        assert len({new.row for new in plan.new}) == len(plan.new)
        for new in plan.new:
            assert 0 <= new.row < self.max_num_seqs
            request = self.requests[new.request]
            assert new.tokens[: new.prompt_length] == request.prompt
            self.rows[new.row] = Row(request, list(new.tokens), list(new.blocks), plan.starts[plan.rows.index(new.row)])
        self.copy(plan)
        assert len(plan.rows) == len(plan.starts) == len(plan.counts) == len(plan.blocks)
        assert len(set(plan.rows)) == len(plan.rows)
        assert plan.sample == sorted(set(plan.sample))
        sampled: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        told: list[PromptLogprobs] = []
        for index, number in enumerate(plan.rows):
            row = self.rows[number]
            row.failed |= index in failing
            row.blocks += plan.blocks[index]
            self.forward(row, plan.starts[index], plan.counts[index])
            complete = row.computed == len(row.tokens)
            assert complete == (index in plan.sample), f"row {number} samples at {row.computed} of {len(row.tokens)}"
            told += self.of_prompt(row, index, plan.starts[index], plan.counts[index])
            if complete:
                sampled.append(self.sample(row))
                count = row.request.params.logprobs
                logprobs.append(None if count is None else self.said_of(sampled[-1], len(row.tokens), count))
                row.tokens.append(sampled[-1])
        failures = [RowFailure(index, "ValueError", "nan") for index in sorted(failing)]
        return StepResult(plan.step, sampled, failures, logprobs if any(logprobs) else [], told)

    def copy(self, plan: StepPlan) -> None:
        """Copy whole blocks, each into one in whose midst a row begins."""
        begun = [(new, plan.starts[plan.rows.index(new.row)]) for new in plan.new]
        targets = {new.blocks[start // self.block_size] for new, start in begun if start % self.block_size}
        for source, target in plan.copies:
            assert 0 <= source < self.num_blocks
            assert target in targets, f"block {source} is copied to {target}, where no row begins"
            for place in range(self.block_size):
                self.slots[target, place] = self.slots.get((source, place), SPOILT)

    def of_prompt(self, row: Row, index: int, start: int, count: int) -> list[PromptLogprobs]:
        """What a step tells of a prompt: the tokens that follow those that it computes."""
        wanted, prompt = row.request.params.prompt_logprobs, row.request.prompt
        end = min(start + count, len(prompt) - 1)
        if wanted is None or start >= end:
            return []
        return [PromptLogprobs(index, start + 1, [self.said_of(prompt[at], at, wanted) for at in range(start + 1, end + 1)])]

    def said_of(self, token: int, position: int, count: int) -> TokenLogprobs:
        """What is said of a token."""
        return logprobs_of(token, position, count, self.vocabulary)

    def sample(self, row: Row) -> int:
        """The token that follows a row's, all of which are computed."""
        assert row.request.params.seed is not None
        return token_at(row.request.params.seed, len(row.tokens) - len(row.request.prompt))

    def forward(self, row: Row, start: int, count: int) -> None:
        """Write the KV of the new positions, then read that of all positions so far, as attention does."""
        assert start == row.computed
        assert count >= 1
        row.computed = start + count
        kv = kv_of(row.request, row.tokens[: row.computed])
        assert len(set(row.blocks)) == len(row.blocks)
        for position in range(start, row.computed):
            self.slots[self.slot(row, position)] = SPOILT if row.failed else kv[position]
        if not row.failed:
            read = [self.slots[self.slot(row, position)] for position in range(row.computed)]
            assert read == kv, f"request {row.request.request} reads the KV of others"

    def slot(self, row: Row, position: int) -> tuple[int, int]:
        """Where the KV of a position lies: block and place in it."""
        block = row.blocks[position // self.block_size]
        assert 0 <= block < self.num_blocks
        return block, position % self.block_size
