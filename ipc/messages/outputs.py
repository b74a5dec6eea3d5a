"""Mailbox outputs[d,a], engine core -> frontend: one writer, one reader."""

from typing import Literal

from .base import Message, Record
from .descriptions import WorkerDescription
from .failure import Failure

FinishReason = Literal["stop", "length", "abort", "error", "repetition", "interrupt"]  # the last one: by a session's consumer


class TokenLogprobs(Record, frozen=True):
    """How likely a token of an output or of a prompt was, and which others were likelier, before anything changed the logits.

    The others are in columns, the likeliest first; without ids they are all tokens of the vocabulary, in its order.
    """

    logprob: float  # of the token itself
    rank: int  # 1: none was likelier
    top_ids: bytes = b""  # int32, little-endian, as the next
    top_logprobs: bytes = b""  # float32


def columns_that_fit(mailbox_bytes: int) -> int:
    """Bytes of `top_ids` and `top_logprobs` together that one TokenLogprobs can have at most, or it may find no room in a
    mailbox of this size.
    """
    return mailbox_bytes // 2 - 512  # the record's and the message's own bytes, generously


class TokenDelta(Record, frozen=True):
    """New tokens of one request. `position` makes a lost or repeated token visible: it must equal the count received so far."""

    request: int
    position: int  # index of tokens[0] among the request's output tokens
    tokens: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token id or string that ended it; None for eos and length
    cached_tokens: int = 0  # prompt tokens whose KV was not computed anew
    scheduled: float = 0.0  # first scheduled at, seconds of CLOCK_MONOTONIC
    logprobs: list[TokenLogprobs] = []  # parallel to tokens, where the request asks for them
    prompt_logprobs: list[TokenLogprobs] = []  # of the prompt's tokens from index `prompt_start` on; they may come again
    prompt_start: int = 0
    queued: float = 0.0  # when the core got the request, with its first token
    preemptions: int = 0  # of the request so far


class StepOutputs(Message, frozen=True):
    """What one step brought for the requests of one frontend."""

    step: int
    deltas: list[TokenDelta]


class EngineDescription(Record, frozen=True):
    """Numbers of a core at one moment."""

    running: int
    waiting: int  # the parked ones too
    num_blocks: int
    free_blocks: int
    steps: int
    parked: int = 0  # requests whose frontend does not read their tokens
    paused: bool = False  # by PauseGeneration
    sessions: int = 0  # open
    sessions_evicted: int = 0  # those of them that have tokens and, between two turns, no KV
    phases: dict[str, float] = {}  # seconds spent in each phase of the core's loop, since it was started
    workers: list[WorkerDescription] = []  # by rank, where they were asked for


class UtilityReply(Message, frozen=True):
    """Answer to the utility call with this number."""

    call: int
    ok: bool = True
    message: str = ""
    description: EngineDescription | None = None


OutputMessage = StepOutputs | UtilityReply | Failure
