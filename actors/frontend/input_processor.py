"""InputProcessor: checks a request at the edge and turns it into the message the core gets."""

import random
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, TypedDict

import msgspec

from ...ipc.messages.config import EngineConfig
from ...ipc.messages.errors import ParameterError
from ...ipc.messages.requests import AddRequest, Sibling
from ...ipc.messages.sampling import MAX_SEED, SamplingParams
from .params_check import ParamsCheck
from .renderer import Renderer, prompt_too_long


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: list[int]


Prompt = str | list[int] | TextPrompt | TokensPrompt

MAX_CACHE_SALT = 256  # characters
MAX_REQUEST_ID = 4096  # characters


def _wrong(message: str) -> ParameterError:
    return ParameterError(message, "prompt")


class InputProcessor:
    """Everything that is wrong with a request is said here, as a ParameterError with the field and the value."""

    def __init__(self, config: EngineConfig, renderer: Renderer, num_blocks: int) -> None:
        self._renderer = renderer
        self._vocab_size = config.checkpoint.vocab_size
        self._ids = list[Annotated[int, msgspec.Meta(ge=0, lt=self._vocab_size)]]
        self._eos_token_ids = config.checkpoint.eos_token_ids
        self._max_model_len = config.checkpoint.max_model_len
        self._block_size = config.cache.block_size
        self._num_blocks = num_blocks
        self._by_priority = config.scheduler.scheduling_policy == "priority"
        self._params = ParamsCheck(config, renderer)
        self._seeds = random.Random(config.runtime.seed)

    def check(self, prompt: Prompt, params: SamplingParams) -> str | list[int]:
        """What can be checked without tokenising; returns the text, or a copy of the token ids."""
        self._params.check(params)
        content = self._content(prompt)
        if not isinstance(content, str):
            self._check_length(len(content))
            return self._plain_ids(content)
        return content

    def check_request_id(self, request_id: str | None, field: str = "request_id") -> str:
        """The caller's id as plain text that can cross to the core; for None a random one. Errors name it as `field`."""
        if request_id is None:
            return uuid.uuid4().hex
        plain = self._plain(field, request_id)
        if len(plain) > MAX_REQUEST_ID:
            message = f"{field} must have at most {MAX_REQUEST_ID} characters, got {len(plain)}: {plain!r:.100}"
            raise ParameterError(message, field)
        return plain

    def check_sharing(self, priority: int, cache_salt: str | None) -> str:
        """What a request says about its share in steps and cache; returns the salt as plain text, empty for none."""
        if type(priority) is not int or not -(2**63) <= priority < 2**63:
            raise ParameterError(f"priority must be an integer from -2**63 to 2**63 - 1, got {priority!r:.100}", "priority")
        if priority and not self._by_priority:
            message = f"priority must be 0, got {priority}: this engine would not use it without --scheduling-policy priority"
            raise ParameterError(message, "priority")
        if cache_salt is None:
            return ""
        salt = self._plain("cache_salt", cache_salt)
        if not 1 <= len(salt) <= MAX_CACHE_SALT:
            message = f"cache_salt must have 1 to {MAX_CACHE_SALT} characters, got {len(salt)}: {salt!r:.100}"
            raise ParameterError(message, "cache_salt")
        return salt

    @staticmethod
    def _plain(field: str, text: str) -> str:
        if not isinstance(text, str):
            raise ParameterError(f"{field} must be text, got {text!r:.100}", field)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ParameterError(f"{field} must not hold a lone surrogate, got {text!r:.100}", field)
        return str(text)

    @staticmethod
    def _content(prompt: Prompt) -> str | list[int]:
        """The text or the ids inside any form of prompt."""
        content: object = prompt
        if isinstance(prompt, dict):
            if len(prompt) != 1 or not prompt.keys() <= {"prompt", "prompt_token_ids"}:
                form = f"prompt as a dict must have one key, 'prompt' or 'prompt_token_ids'; got {list(prompt)}"
                raise _wrong(f"{form}. cache_salt and priority are arguments beside it")
            ((key, content),) = prompt.items()
            if isinstance(content, str) != (key == "prompt"):
                raise _wrong(f"prompt['{key}'] must be {'text' if key == 'prompt' else 'token ids'}, got {content!r:.100}")
        if isinstance(content, str):
            return content
        if isinstance(content, list | tuple):
            if content and isinstance(content[0], dict):
                raise _wrong(
                    f"prompt must be text or token ids, got messages; make a prompt of them: chat_prompt({content!r:.50}...)"
                )
            return list(content)
        raise _wrong(f"prompt must be text, a list of token ids or a dict of either, got {content!r:.100}")

    def _check_id(self, field: str, token: object) -> None:
        if type(token) is not int or not 0 <= token < self._vocab_size:  # a subclass could not be encoded
            raise ParameterError(f"{field} must hold token ids from 0 to {self._vocab_size - 1}, got {token!r:.100}", field)

    def _plain_ids(self, tokens: list[int]) -> list[int]:
        """The ids of a prompt, checked. A call for each of a million would hold up the loop."""
        try:
            return msgspec.convert(tokens, self._ids)
        except msgspec.ValidationError:
            for token in tokens:
                self._check_id("prompt", token)
            raise

    def _check_length(self, length: int) -> None:
        if length == 0:
            raise _wrong("prompt must not be empty: it gives no tokens")
        if length >= self._max_model_len:
            raise prompt_too_long(f"{length} tokens", self._max_model_len)

    async def tokens_of(self, prompt: Prompt, params: SamplingParams) -> TokensPrompt:
        """The prompt as token ids, with all that `check` and `message` check."""
        tokens = await self.encode(self.check(prompt, params))
        await self.settle(params)
        self._complete(params, len(tokens))
        return {"prompt_token_ids": tokens}

    async def encode(self, content: str | list[int], *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a checked prompt. Raises ParameterError for what shows only in tokens."""
        if not isinstance(content, str):
            return content
        return self.check_encoded(await self._renderer.encode(content, add_special_tokens=add_special_tokens))

    async def settle(self, params: SamplingParams) -> None:
        """Do what of `message` may take long where it holds nobody up. Raises as that does."""
        await self._params.settle_soon(params)

    def check_encoded(self, tokens: list[int]) -> list[int]:
        """The same ids, if they fit model and context."""
        self._check_length(len(tokens))
        self._check_id("prompt", max(tokens))  # a tokenizer may know more ids than the model
        return tokens

    def check_session(self, params: SamplingParams) -> None:
        """What can be checked of a session's parameters; each of its chunks is answered once."""
        self._params.check(params)
        for field, value, right in (("n", params.n, 1), ("prompt_logprobs", params.prompt_logprobs, None)):
            if value != right:
                raise ParameterError(f"{field} must be {right} in a session, got {value}", field)

    def check_turn(self, context: int, tokens: int, params: SamplingParams) -> None:
        """Whether an answer finds room behind a context of so many tokens and a chunk of so many. ParameterError if not."""
        if context + tokens >= self._max_model_len:
            length = f"{tokens} tokens behind the {context} of its session"
            raise prompt_too_long(length, self._max_model_len)
        self._complete(params, context + tokens)

    def message(
        self,
        numbers: Sequence[int],
        external_id: str,
        tokens: list[int],
        params: SamplingParams,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AddRequest:
        """The message for a checked prompt, whose answers have these numbers. Raises ParameterError for what shows only against
        the cache's size.
        """
        complete = self._complete(params, len(tokens))
        assert complete.seed is not None
        siblings = [Sibling(number, (complete.seed + index) % (MAX_SEED + 1)) for index, number in enumerate(numbers)]
        return AddRequest(
            numbers[0],
            external_id,
            tokens,
            complete,
            time.monotonic(),
            self._eos_token_ids,
            priority=priority,
            cache_salt=cache_salt,
            siblings=tuple(siblings[1:]),
        )

    def _complete(self, params: SamplingParams, length: int) -> SamplingParams:
        """The parameters of one answer to a prompt of this length, with all settled that depends on this process."""
        cache_tokens = self._num_blocks * self._block_size
        if length > cache_tokens:
            blocks = f"{self._num_blocks} blocks of {self._block_size}"
            message = f"prompt has {length} tokens, which can never fit the KV cache of {cache_tokens} tokens ({blocks})"
            raise ParameterError(message, "prompt", "context_length_exceeded")
        room = min(self._max_model_len, cache_tokens + 1) - length  # the last token is never computed
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        if params.min_tokens > max_tokens:
            raise ParameterError(
                f"min_tokens must be at most {max_tokens}, the room for an answer after a prompt of {length} tokens, "
                f"got {params.min_tokens}",
                "min_tokens",
            )
        seed = params.seed if params.seed is not None and params.seed >= 0 else self._seeds.randint(0, MAX_SEED)
        return self._params.settle(params).derive(max_tokens=max_tokens, seed=seed)
