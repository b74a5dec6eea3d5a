"""Mailbox plans[d], engine core -> its workers: one writer, many readers, strictly ordered.

The core gives each running request a row (0 <= row < max_num_seqs) of the workers' persistent state. A request's data
crosses once, in a NewRow; later plans hold only what changed. Sampled tokens never come back in a plan: a worker keeps
the ones it sampled, so a step can be planned before the result of the one before is known.
"""

from .base import Message, Record
from .payload import Payload
from .sampling import SamplingParams


class InitCache(Message, frozen=True):
    """Allocate the KV cache. Sent once, when every worker has said how many blocks it could hold."""

    num_blocks: int


class NewRow(Record, frozen=True):
    """Everything about a request that enters a row."""

    row: int
    request: int
    tokens: list[int]  # prompt and any output so far
    prompt_length: int  # how many of them are prompt
    blocks: list[int]  # block ids in order of position
    params: SamplingParams


class RowTokens(Record, frozen=True):
    """Tokens to write into a row's sequence from position `start` on (a session's next chunk)."""

    row: int
    start: int
    tokens: list[int]


class StepPlan(Message, frozen=True):
    """One forward step over a mixed batch.

    `rows`, `starts`, `counts` and `blocks` are parallel, one entry a scheduled request: compute positions
    start .. start + count - 1 of the row, after appending `blocks` to its block table. `sample` lists the indices into
    them whose last position yields a token; the result's tokens are in that order.
    """

    step: int
    new: list[NewRow]
    rows: list[int]
    starts: list[int]
    counts: list[int]
    blocks: list[list[int]]
    sample: list[int]
    appended: list[RowTokens] = []
    late_mask: bool = False  # a SampleMask for this step follows; sampling waits for it
    copies: list[tuple[int, int]] = []  # (from, to): blocks of the KV cache to copy, in order, before anything is computed


class SampleMask(Message, frozen=True):
    """Allowed tokens for rows of the step in hand: one bit a token of the vocabulary, least significant first."""

    step: int
    rows: list[int]
    masks: Payload  # of ceil(vocab_size / 8) bytes a row, in the order of rows


class Reset(Message, frozen=True):
    """Core and workers begin this epoch: forget all rows, keep the weights, answer with WorkerReady.

    A worker passes over what comes before the Reset of the latest epoch that it knows of.
    """

    epoch: int


class DescribeWorker(Message, frozen=True):
    """Ask every rank for a WorkerDescription, in a CallResult."""

    call: int


class StopWorker(Message, frozen=True):
    """Leave in good order."""


PlanMessage = StepPlan | SampleMask | InitCache | Reset | DescribeWorker | StopWorker
