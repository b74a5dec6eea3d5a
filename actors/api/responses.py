"""Bodies of replies and events of streams, as OpenAI's API and vLLM's extensions spell them."""

import msgspec
from msgspec import UNSET, UnsetType

from ...ipc.messages.outputs import FinishReason

StopReason = int | str | None
TokenIds = list[int] | UnsetType  # present only where return_token_ids asks for it


class PromptTokensDetails(msgspec.Struct):
    """Where a prompt's tokens came from."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of a request, all its prompts and answers together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptLogprob(msgspec.Struct):
    """How likely a token was in its place of a prompt."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[int, PromptLogprob] | None]  # the prompt's own token first; null for the first token
Spelled = msgspec.Raw | UnsetType  # PromptLogprobs in JSON; present only where prompt_logprobs asks for them


class CompletionLogprobs(msgspec.Struct):
    """How likely the tokens of a text were: parallel lists, with null for a first token that nothing comes before."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]  # characters of the text before the token


class TopLogprob(msgspec.Struct):
    """How likely a token was in some place."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """How likely a token of a message was, and which were the likeliest in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """How likely the tokens of a message were."""

    content: list[ChatLogprob]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """An answer, or what is new in it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: StopReason
    token_ids: TokenIds = UNSET
    prompt_token_ids: TokenIds = UNSET
    prompt_logprobs: Spelled = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """Reply of /v1/completions, and each event of its stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class Message(msgspec.Struct):
    """The assistant's message."""

    content: str
    role: str = "assistant"


class Delta(msgspec.Struct):
    """What is new in the assistant's message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """An answer."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: StopReason
    token_ids: TokenIds = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """What is new in an answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: StopReason = None
    token_ids: TokenIds = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """Reply of /v1/chat/completions."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: TokenIds = UNSET
    prompt_logprobs: Spelled = UNSET


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    """An event of a stream of /v1/chat/completions."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: TokenIds = UNSET
    prompt_logprobs: Spelled = UNSET


class ModelCard(msgspec.Struct, kw_only=True):
    """A served model."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "ringpost"
    root: str
    parent: None = None
    max_model_len: int


class ModelList(msgspec.Struct):
    """Reply of /v1/models."""

    data: list[ModelCard]
    object: str = "list"


class Version(msgspec.Struct):
    """Reply of /version."""

    version: str
