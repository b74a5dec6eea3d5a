"""Renderer: the one owner of the tokenizer and the chat template."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders

from ...ipc.messages.config import Checkpoint
from ...ipc.messages.errors import ParameterError
from .detokenizer import Detokenizer, Vocabulary

_INLINE_CHARACTERS = 4096  # a longer text is tokenised in a thread, so that it holds nobody up


def import_template_engine() -> tuple[Callable[..., Any], type[Exception]]:
    """transformers' renderer of chat templates and jinja2's error. Takes about a second the first time."""
    from jinja2 import TemplateError  # noqa: PLC0415
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415

    return render_jinja_template, TemplateError


def prompt_too_long(length: str, max_model_len: int) -> ParameterError:
    """The error of a prompt that leaves no room for an answer; `length` is in words."""
    rule = f"with max_model_len={max_model_len} it may have at most {max_model_len - 1} tokens, to leave room for an answer"
    return ParameterError(f"prompt has {length}; {rule}", "prompt", "context_length_exceeded")


class _Template(msgspec.Struct):
    name: str
    template: str


class _Token(msgspec.Struct):
    content: str


class _TokenizerConfig(msgspec.Struct):
    """As much of tokenizer_config.json as chats need."""

    chat_template: str | list[_Template] | None = None
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    unk_token: str | _Token | None = None
    pad_token: str | _Token | None = None


class Renderer:
    """Turns text and conversations into token ids, and tokens back into text."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Load the tokenizer and the chat template. Raises ValueError, naming the file, for one that is broken."""
        self._directory = Path(checkpoint.tokenizer_directory)
        self._max_model_len = checkpoint.max_model_len
        self._template, self._template_tokens = self._read_template()
        file = self._directory / "tokenizer.json"
        try:
            self.tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"tokenizer {file} cannot be loaded: {error}") from error
        # The file may still hold the settings that someone trained with; a prompt is never cut or filled up in silence.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        byte_level = isinstance(self.tokenizer.decoder, decoders.ByteLevel)
        self._vocabulary = Vocabulary(self.tokenizer, byte_level=byte_level)
        # Where characters may vanish before the split into tokens, a text's length says nothing.
        exact = byte_level and self.tokenizer.normalizer is None
        self._longest_token = max(map(len, self.tokenizer.get_vocab())) if exact else None

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises ParameterError for text that is no valid Unicode, or can never fit the context."""
        # Nobody waits for megabytes to be tokenised only to be refused.
        least = 0 if self._longest_token is None else len(text) // self._longest_token
        if least >= self._max_model_len > 0:
            raise prompt_too_long(f"{len(text)} characters, which are at least {least} tokens", self._max_model_len)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"prompt holds a lone surrogate, {text[error.start]!r} at character {error.start}"
            raise ParameterError(message, "prompt") from None
        if len(text) <= _INLINE_CHARACTERS:
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        # encode_batch gives up the GIL while it works; encode does not.
        batch = await asyncio.to_thread(self.tokenizer.encode_batch, [text], add_special_tokens=add_special_tokens)
        return list(batch[0].ids)

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        """A fresh detokeniser for the answer to one request."""
        return self._vocabulary.detokenizer(skip_special_tokens=skip_special_tokens)

    async def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Token ids of the prompt for a conversation. The template writes the special tokens. Errors as `render_chat`."""
        rendered = await asyncio.to_thread(self.render_chat, messages)
        return await self.encode(rendered, add_special_tokens=False)

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> str:
        """The prompt for a conversation, by the model's own template (sandboxed), ready for the assistant's turn.

        Raises ParameterError when the model has no template, or the template refuses the messages.
        """
        if self._template is None:
            raise ParameterError("messages: the model has no chat template; send a prompt instead", "messages")
        render, template_error = import_template_engine()
        try:
            rendered, _ = render(
                conversations=[list(messages)],
                chat_template=self._template,
                add_generation_prompt=True,
                **self._template_tokens,
            )
        except (template_error, TypeError, KeyError, AttributeError) as error:
            raise ParameterError(f"messages: the chat template refuses them: {error}", "messages") from error
        return str(rendered[0])

    def _read_template(self) -> tuple[str | None, dict[str, str]]:
        """The template, if the model has one, and the special tokens it may name. Raises ValueError for a broken file."""
        file = self._directory / "tokenizer_config.json"
        try:
            config = msgspec.json.decode(file.read_bytes(), type=_TokenizerConfig) if file.exists() else _TokenizerConfig()
            file = self._directory / "chat_template.jinja"
            template = file.read_text(encoding="utf-8") if file.exists() else config.chat_template
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from None
        if isinstance(template, list):
            template = next((entry.template for entry in template if entry.name == "default"), None)
        named = {name: getattr(config, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        return template, {name: token if isinstance(token, str) else token.content for name, token in named.items() if token}
