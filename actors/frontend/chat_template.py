"""ChatTemplate: a conversation as the text of a prompt, by the model's own template."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...ipc.messages.errors import ParameterError


def import_template_engine() -> tuple[Callable[..., Any], type[Exception]]:
    """transformers' renderer of chat templates and jinja2's error. Takes about a second the first time."""
    from jinja2 import TemplateError  # noqa: PLC0415
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415

    return render_jinja_template, TemplateError


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


class ChatTemplate:
    """The template of a tokenizer's directory; the model may have none."""

    def __init__(self, directory: Path) -> None:
        """Read it, and the special tokens it may name. Raises ValueError for a broken file."""
        file = directory / "tokenizer_config.json"
        try:
            config = msgspec.json.decode(file.read_bytes(), type=_TokenizerConfig) if file.exists() else _TokenizerConfig()
            file = directory / "chat_template.jinja"
            template = file.read_text(encoding="utf-8") if file.exists() else config.chat_template
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from None
        if isinstance(template, list):
            template = next((entry.template for entry in template if entry.name == "default"), None)
        named = {name: getattr(config, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        self._template = template
        self._tokens = {name: token if isinstance(token, str) else token.content for name, token in named.items() if token}

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """The prompt for a conversation (the template runs in a sandbox), ready for the assistant's turn.

        Raises ParameterError when the model has no template, or the template refuses the messages.
        """
        if self._template is None:
            raise ParameterError("messages: the model has no chat template; send a prompt instead", "messages")
        conversation = _plain(messages)
        render, template_error = import_template_engine()
        try:
            rendered, _ = render(
                conversations=[conversation], chat_template=self._template, add_generation_prompt=True, **self._tokens
            )
        except (template_error, TypeError, KeyError, AttributeError) as error:
            raise ParameterError(f"messages: the chat template refuses them: {error}", "messages") from error
        return str(rendered[0])


def _plain(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose contents are texts, as templates expect them: the texts of several parts are joined by newlines."""
    if isinstance(messages, str | dict) or not messages:
        raise ParameterError(f"messages must be a list of at least one message, got {messages!r:.100}", "messages")
    plain = []
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if not isinstance(message, dict):
            raise ParameterError(f"{place} must be a dict with role and content, got {message!r:.100}", place)
        content = message.get("content")
        if isinstance(content, list):
            texts = [part["text"] for part in content if _is_text(part)]
            content = "\n".join(texts) if len(texts) == len(content) else None
        if not isinstance(content, str):
            wanted = f"{place}.content must be text, or a list of parts of type text"
            raise ParameterError(f"{wanted}, got {message.get('content')!r:.100}", f"{place}.content")
        plain.append(message | {"content": content})
    return plain


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
