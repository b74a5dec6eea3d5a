"""Bodies of requests, as OpenAI's API and vLLM's extensions spell them."""

from typing import Any

import msgspec

from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import RequestOutputKind, SamplingParams

MAX_CHOICES = 128  # as with OpenAI


class StreamOptions(msgspec.Struct):
    """What a stream carries besides the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # usage so far in every event


class GenerationRequest(msgspec.Struct, kw_only=True):
    """What both routes take. `null` is like leaving a field out; the engine checks ranges."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    request_id: str | None = None
    priority: int | None = None
    cache_salt: str | None = None

    @property
    def num_choices(self) -> int:
        """Answers to each prompt."""
        return 1 if self.n is None else self.n

    def check(self) -> None:
        """Raise ParameterError for what is wrong with the request as a whole."""
        if not 1 <= self.num_choices <= MAX_CHOICES:
            raise ParameterError(f"n must be an integer from 1 to {MAX_CHOICES}, got {self.n}", "n")
        if self.stream_options is not None and not self.stream:
            raise ParameterError("stream_options may only be given with stream=true", "stream_options")

    def sampling_params(self, max_tokens: int | None) -> SamplingParams:
        """The engine's form. Raises ParameterError for a value out of range."""
        same = ("min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "stop_token_ids", "ignore_eos")
        given = {name: getattr(self, name) for name in (*same, "skip_special_tokens") if getattr(self, name) is not None}
        kind = RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY
        return SamplingParams(**given, max_tokens=max_tokens, output_kind=kind)


class CompletionRequest(GenerationRequest, kw_only=True):
    """Body of /v1/completions."""

    prompt: str | list[str | int | list[int]]
    best_of: int | None = None

    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids, whose values the engine checks."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise ParameterError("prompt must not be empty, got []", "prompt")
        prompts = [item for item in self.prompt if not isinstance(item, int)]
        ids = [item for item in self.prompt if isinstance(item, int)]
        if prompts and ids:
            odd = f"token id {ids[0]} among prompts"
            raise ParameterError(f"prompt must hold prompts only or token ids only, got {odd:.100}", "prompt")
        return prompts or [ids]

    def check(self) -> None:
        """See GenerationRequest."""
        super().check()
        if self.best_of is not None and self.best_of != self.num_choices:
            raise ParameterError(
                f"best_of is not supported yet: it may only be n={self.num_choices}, got {self.best_of}", "best_of"
            )

    def params(self) -> SamplingParams:
        """Sampling parameters with this route's default length."""
        return self.sampling_params(16 if self.max_tokens is None else self.max_tokens)


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """A part of a message's content."""

    text: str


class ChatMessage(msgspec.Struct):
    """One message of a conversation."""

    role: str
    content: str | list[TextPart] | None = None  # which only a message that is refused may lack
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: Any = None

    def for_template(self, place: str) -> dict[str, Any]:
        """As chat templates expect it: the texts of several parts are joined by newlines, as vLLM does.

        Raises ParameterError, naming the message's place, for one without content, and for one of tools or sound.
        """
        for field in ("tool_calls", "tool_call_id", "function_call", "audio"):
            if getattr(self, field):
                raise ParameterError(f"{place}.{field} is not supported yet: leave it out", f"{place}.{field}")
        if self.content is None:
            raise ParameterError(f"{place}.content is required", f"{place}.content")
        text = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        message = {"role": self.role, "content": text}
        return message if self.name is None else message | {"name": self.name}


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None

    def conversation(self) -> list[dict[str, Any]]:
        """The messages for the chat template."""
        if not self.messages:
            raise ParameterError("messages must hold at least one message, got []", "messages")
        return [message.for_template(f"messages[{index}]") for index, message in enumerate(self.messages)]

    def params(self) -> SamplingParams:
        """Sampling parameters; without a limit the answer may fill the context."""
        if self.max_completion_tokens is None:
            return self.sampling_params(self.max_tokens)
        try:
            return self.sampling_params(self.max_completion_tokens)
        except ParameterError as error:
            if error.parameter != "max_tokens":
                raise
            raise ParameterError(f"{error} as max_completion_tokens", "max_completion_tokens") from None
