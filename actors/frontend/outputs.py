"""What a caller gets: RequestOutput and its parts."""

from dataclasses import dataclass, field

from ...ipc.messages.outputs import FinishReason


@dataclass(slots=True)
class CompletionOutput:
    """One answer to a request. With output kind "delta", text and token_ids are only what is new."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token id that ended it; None for the model's own end and for length

    @property
    def finished(self) -> bool:
        """Whether no more comes."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds of CLOCK_MONOTONIC; 0 where they have not."""

    arrival_time: float = 0.0
    first_scheduled_time: float = 0.0
    first_token_time: float = 0.0  # when the frontend had it
    last_token_time: float = 0.0
    num_generation_tokens: int = 0


@dataclass(slots=True)
class RequestOutput:
    """The state of a request, or the news about it."""

    request_id: str  # the caller's
    prompt: str | None  # None when the prompt was given as token ids
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0  # prompt tokens whose KV was not computed anew
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
