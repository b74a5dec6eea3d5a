"""Batch: a step from the first request put in until its result has been applied."""

from ..ipc.messages.plans import NewRow, StepPlan
from ..ipc.messages.results import StepResult
from .errors import ResultMismatch
from .request import Request


class Batch:
    """The lists of a StepPlan, with the requests that its entries and samples stand for."""

    __slots__ = (
        "_longest_chunk",
        "blocks",
        "budget",
        "computing",
        "copies",
        "counts",
        "new",
        "requests",
        "rows",
        "sample",
        "sampled",
        "starts",
        "step",
    )

    def __init__(self, step: int, budget: int, longest_chunk: int = 0) -> None:
        self.step = step
        self.budget = budget  # tokens that may still be added
        self._longest_chunk = longest_chunk or budget  # tokens of one request; 0: any number
        self.new: list[NewRow] = []
        self.rows: list[int] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.blocks: list[list[int]] = []
        self.sample: list[int] = []
        self.requests: list[Request] = []  # parallel to rows
        self.sampled: list[Request] = []  # parallel to sample
        self.copies: list[tuple[int, int]] = []  # blocks, from and to
        self.computing: list[tuple[Request, int]] = []  # requests that offer blocks before they are computed, and up to where

    def chunk_of(self, request: Request) -> int:
        """How many of the positions that a request has to catch up with this step computes."""
        return min(request.num_schedulable - request.num_computed, self.budget, self._longest_chunk)

    def add(self, request: Request, count: int, blocks: list[int]) -> None:
        """Compute the request's next `count` positions, after appending `blocks` to its table in the workers.

        The request's counts advance at once, not when the result arrives, so that the next step can be planned first.
        """
        start = request.num_computed
        end = start + count
        if end == request.num_schedulable:
            self.sample.append(len(self.rows))
            self.sampled.append(request)
            request.num_in_flight += 1
            if end < request.max_positions:
                request.num_schedulable = end + 1
        if request.computing:
            self.computing.append((request, end))
        request.num_computed = end
        request.last_step = self.step
        self.requests.append(request)
        self.rows.append(request.row)
        self.starts.append(start)
        self.counts.append(count)
        self.blocks.append(blocks)
        self.budget -= count

    def add_new(self, request: Request, count: int) -> None:
        """The same for a request that enters a row: all that is known of it crosses to the workers, its whole table too.

        It starts where it left off when it gave up its last row, so none of its tokens may be in flight.
        """
        tokens = [*request.prompt, *request.output]
        blocks = list(request.block_table)
        self.new.append(NewRow(request.row, request.request_id, tokens, len(request.prompt), blocks, request.params))
        self.add(request, count, [])

    def check(self, result: StepResult) -> None:
        """Raise ResultMismatch if a result is not that of this step."""
        if result.step != self.step:
            raise ResultMismatch(f"result of step {result.step}, but step {self.step} is the oldest in flight")
        if len(result.tokens) != len(self.sampled):
            raise ResultMismatch(f"step {self.step} samples {len(self.sampled)} tokens, got {len(result.tokens)}")
        for failure in result.failures:
            if not 0 <= failure.index < len(self.requests):
                raise ResultMismatch(f"step {self.step} has {len(self.requests)} rows, failure names {failure.index}")
        if result.logprobs and len(result.logprobs) != len(result.tokens):
            raise ResultMismatch(f"step {self.step} has {len(result.tokens)} tokens, and {len(result.logprobs)} logprobs")
        for part in result.prompt_logprobs:
            if not 0 <= part.index < len(self.requests):
                raise ResultMismatch(f"step {self.step} has {len(self.requests)} rows, prompt logprobs name {part.index}")

    def plan(self) -> StepPlan:
        """The step as the workers get it."""
        lists = (self.rows, self.starts, self.counts, self.blocks, self.sample)
        return StepPlan(self.step, self.new, *lists, copies=self.copies)
