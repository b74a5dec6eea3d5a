"""Mailbox results[d,r], worker r -> engine core: one writer, one reader."""

from .base import Message, Record
from .descriptions import WorkerDescription
from .outputs import TokenLogprobs


class WorkerReady(Message, frozen=True):
    """Answer to Reset: the weights are loaded, and nothing of an earlier epoch is answered any more."""

    rank: int
    num_blocks: int  # blocks of KV cache this rank can hold
    epoch: int = 1  # that of the Reset


class RowFailure(Record, frozen=True):
    """One request of a step failed; the others have their tokens."""

    index: int  # into StepPlan.rows
    kind: str
    message: str
    traceback: str = ""


class PromptLogprobs(Record, frozen=True):
    """What a step tells of a prompt: the tokens from index `start` on, which it has logits for."""

    index: int  # into StepPlan.rows
    start: int
    logprobs: list[TokenLogprobs]


class StepResult(Message, frozen=True):
    """Tokens of a step, parallel to StepPlan.sample. Only the output rank sends it."""

    step: int
    tokens: list[int]
    failures: list[RowFailure] = []
    logprobs: list[TokenLogprobs | None] = []  # parallel to tokens; empty where no request of the step asks for them
    prompt_logprobs: list[PromptLogprobs] = []


class CallResult(Message, frozen=True):
    """Answer to the worker call with this number (InitCache answers as call 0)."""

    call: int
    rank: int
    description: WorkerDescription | None = None


ResultMessage = WorkerReady | StepResult | CallResult
