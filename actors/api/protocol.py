"""Bodies of requests, as OpenAI's API and vLLM's extensions spell them."""

from typing import Any, ClassVar

import msgspec

from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import RequestOutputKind
from .sampling_fields import SamplingFields

MAX_CHOICES = 128  # as with OpenAI


class StreamOptions(msgspec.Struct):
    """What a stream carries besides the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # usage so far in every event


class GenerationRequest(SamplingFields, kw_only=True):
    """What both routes take."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: str | None = None
    priority: int | None = None
    cache_salt: str | None = None

    @property
    def num_choices(self) -> int:
        """Answers to each prompt."""
        return 1 if self.n is None else self.n

    @property
    def wants_answer(self) -> bool:
        """Whether anything is to be generated."""
        return True

    @property
    def output_kind(self) -> RequestOutputKind:
        """See SamplingFields."""
        return RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY

    def check(self) -> None:
        """Raise ParameterError for what is wrong with the request as a whole."""
        if not 1 <= self.num_choices <= MAX_CHOICES:
            raise ParameterError(f"n must be an integer from 1 to {MAX_CHOICES}, got {self.n}", "n")
        if self.stream_options is not None and not self.stream:
            raise ParameterError("stream_options may only be given with stream=true", "stream_options")


class CompletionRequest(GenerationRequest, kw_only=True):
    """Body of /v1/completions."""

    prompt: str | list[str | int | list[int]]
    best_of: int | None = None
    logprobs: int | bool | None = None
    echo: bool | None = None

    default_max_tokens: ClassVar[int | None] = 16

    @property
    def wants_answer(self) -> bool:
        """See GenerationRequest. Without an answer, the prompt is told."""
        return not (self.echo and self.max_tokens == 0)

    @property
    def wants_logprobs(self) -> bool:
        """Whether the tokens' logprobs are to be told; 0 asks for those of the tokens themselves."""
        return self.logprobs is not None and self.logprobs is not False

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

    def _own_params(self) -> dict[str, Any]:
        own: dict[str, Any] = {"logprobs": self.logprobs}
        if self.echo and self.prompt_logprobs is None:
            own["prompt_logprobs"] = self.logprobs
        if not self.wants_answer:
            own["max_tokens"] = 1  # the engine gives no less
        return own

    def _their_name(self, field: str) -> str:
        if field == "prompt_logprobs" and self.prompt_logprobs is None:
            return "logprobs"
        return super()._their_name(field)


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
    logprobs: bool | None = None
    top_logprobs: int | None = None

    default_max_tokens: ClassVar[int | None] = None  # the answer may fill the context
    theirs: ClassVar[dict[str, str]] = GenerationRequest.theirs | {"logprobs": "top_logprobs", "prompt": "messages"}

    def conversation(self) -> list[dict[str, Any]]:
        """The messages for the chat template."""
        if not self.messages:
            raise ParameterError("messages must hold at least one message, got []", "messages")
        return [message.for_template(f"messages[{index}]") for index, message in enumerate(self.messages)]

    def check(self) -> None:
        """See GenerationRequest."""
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise ParameterError(f"top_logprobs may only be given with logprobs=true, got {self.top_logprobs}", "top_logprobs")

    def _own_params(self) -> dict[str, Any]:
        own: dict[str, Any] = {}
        if self.logprobs:
            own["logprobs"] = self.top_logprobs or 0
        if self.max_completion_tokens is not None:
            own["max_tokens"] = self.max_completion_tokens
        return own

    def _their_name(self, field: str) -> str:
        if field == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        return super()._their_name(field)
