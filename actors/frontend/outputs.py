"""What a caller gets: RequestOutput and its parts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ...ipc.messages.outputs import FinishReason
from .logprobs import PromptLogprobs, SampleLogprobs


@dataclass(slots=True)
class CompletionOutput:
    """One answer to a request. With output kind "delta", text, token_ids and logprobs are only what is new.

    With "cumulative" they are everything, and before the last output token_ids and logprobs are Views, so that an output costs
    no more for all that came before it; else they are lists (logprobs with `flat_logprobs`: FlatLogprobs).
    """

    index: int
    text: str
    token_ids: Sequence[int]  # the one that ended the answer too
    cumulative_logprob: float | None = None  # of the whole answer so far; None without logprobs
    logprobs: SampleLogprobs | None = None  # for each token: itself and the likeliest in its place; None: nobody asked
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop string or stop token id that ended it; None for any other end

    @property
    def finished(self) -> bool:
        """Whether no more comes."""
        return self.finish_reason is not None


class RequestMetrics(msgspec.Struct):
    """When things happened to a request, in seconds of CLOCK_MONOTONIC but for the first; 0 where they have not."""

    arrival_unix_time: float = 0.0  # seconds since 1970, by the system's clock
    arrival_time: float = 0.0
    queued_time: float = 0.0  # when the core had it
    first_scheduled_time: float = 0.0
    first_token_time: float = 0.0  # when the frontend had it
    last_token_time: float = 0.0
    num_generation_tokens: int = 0  # of all its answers
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True)
class ChunkBoundary:
    """The answer to one chunk of a session's input has ended, and with it this chunk's share of the context."""

    chunk: int  # its number, from 0 in the order of `append`
    context_length: int  # tokens in the session's context now
    finish_reason: FinishReason  # "interrupt": by the session's user; else as of a request
    stop_reason: int | str | None = None
    num_tokens: int = 0  # of the answer, as outputs have told it


@dataclass(slots=True)
class RequestOutput:
    """The state of a request, or the news about it; of a session, those of one chunk."""

    request_id: str  # the caller's
    prompt: str | None  # None when the prompt was given as token ids
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]  # by index; those with news, or, with output kind "final_only", all
    finished: bool  # no more outputs come; of a session: the whole of it
    num_cached_tokens: int = 0  # prompt tokens whose KV was not computed anew
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    prompt_logprobs: PromptLogprobs | None = None  # parallel to prompt_token_ids; with output kind "delta" in the first only
    num_cache_creation_tokens: int = 0  # prompt tokens whose KV was computed, and is kept for later requests to find
    boundary: ChunkBoundary | None = None  # of sessions: this is the last output of its chunk
