"""Renderer: the one owner of the tokenizer and the chat template."""

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders

from ...ipc.blocking import in_thread
from ...ipc.messages.config import Checkpoint
from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import SamplingParams
from .chat_template import ChatTemplate
from .detokenizer import Detokenizer, NoText, Vocabulary, Words

_INLINE_CHARACTERS = 4096  # a longer text is tokenised in a thread, so that it holds nobody up
_INLINE_TOKENS = 1024  # the same of token ids that become text
_NO_TOKENIZER = "this engine has no tokenizer (skip_tokenizer_init)"


def prompt_too_long(length: str, max_model_len: int) -> ParameterError:
    """The error of a prompt that leaves no room for an answer; `length` is in words."""
    rule = f"with max_model_len={max_model_len} it may have at most {max_model_len - 1} tokens, to leave room for an answer"
    return ParameterError(f"prompt has {length}; {rule}", "prompt", "context_length_exceeded")


def _load(file: Path) -> Vocabulary:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"tokenizer {file} cannot be loaded: {error}") from error
    # The file may still hold the settings that someone trained with; a prompt is never cut or filled up in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Vocabulary(tokenizer, byte_level=isinstance(tokenizer.decoder, decoders.ByteLevel))


def _spell(detokenizer: Detokenizer, token_ids: Sequence[int]) -> list[str]:
    texts = [detokenizer.push([token]) for token in token_ids]
    if rest := detokenizer.flush():
        texts[-1] += rest
    return texts


class Renderer:
    """Turns text and conversations into token ids, and tokens back into text."""

    def __init__(self, checkpoint: Checkpoint, *, skip_tokenizer_init: bool = False) -> None:
        """Load the tokenizer and the chat template, unless that is to be skipped: then there are only token ids.

        Raises ValueError, naming the file, for one that is broken.
        """
        self._directory = Path(checkpoint.tokenizer_directory)
        self._max_model_len = checkpoint.max_model_len
        self._vocab_size = checkpoint.vocab_size
        self._vocabulary = None if skip_tokenizer_init else _load(self._directory / "tokenizer.json")
        self._template = None if skip_tokenizer_init else ChatTemplate(self._directory)
        # Where characters may vanish before the split into tokens, a text's length says nothing.
        known = self._vocabulary
        exact = known is not None and known.byte_level and known.tokenizer.normalizer is None
        self._longest_token = max(map(len, known.tokenizer.get_vocab())) if exact and known is not None else None
        self._own: Any = None  # transformers' tokenizer
        self._loading = threading.Lock()

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises ParameterError for text that is no valid Unicode, or can never fit the context."""
        if self._vocabulary is None:
            raise ParameterError(f"prompt must be token ids: {_NO_TOKENIZER}", "prompt")
        # Nobody waits for megabytes to be tokenised only to be refused.
        least = 0 if self._longest_token is None else len(text) // self._longest_token
        if least >= self._max_model_len > 0:
            raise prompt_too_long(f"{len(text)} characters, which are at least {least} tokens", self._max_model_len)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"prompt holds a lone surrogate, {text[error.start]!r} at character {error.start}"
            raise ParameterError(message, "prompt") from None
        tokenize = partial(self._tokenize, self._vocabulary.tokenizer, add_special_tokens=add_special_tokens)
        return tokenize(text) if len(text) <= _INLINE_CHARACTERS else await in_thread(tokenize, text)

    @staticmethod
    def _tokenize(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
        # This call gives up the GIL while it works, `encode` does not; and there are no offsets, whose release would hold it.
        batch = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        return ids

    def words(self, params: SamplingParams) -> Words:
        """How the answers to a request with these parameters become text.

        Raises ParameterError when they are to, and there is no tokenizer.
        """
        vocabulary = self._vocabulary
        if vocabulary is None:
            if params.detokenize:
                raise ParameterError(f"detokenize must be False, got True: {_NO_TOKENIZER}", "detokenize")
            return Words(NoText, lambda _: b"")
        if not params.detokenize:
            return Words(NoText, vocabulary.bytes_of)
        detokenizer = partial(
            vocabulary.detokenizer,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
        return Words(detokenizer, vocabulary.bytes_of)

    def bad_word_ids(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """The sequences of token ids by which an answer could hold one of these words: each at the start of a text, and behind
        a space. Raises ParameterError where a word gives no tokens, or there is no tokenizer.
        """
        if self._vocabulary is None:
            raise ParameterError(f"bad_words must be empty: {_NO_TOKENIZER}; bad_words_token_ids may be given", "bad_words")
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = word.lstrip() or word
            forms = [self._tokenize(self._vocabulary.tokenizer, text, add_special_tokens=False) for text in (bare, " " + bare)]
            if not all(forms):
                raise ParameterError(f"bad_words must hold words that give tokens, got {word!r:.100}", "bad_words")
            # A tokenizer may know more ids than the model, which says none of those.
            found |= dict.fromkeys(tuple(form) for form in forms if max(form) < self._vocab_size)
        return tuple(found)

    async def token_texts(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> list[str]:
        """What each of these tokens adds to the text of all; a token within a character adds nothing, or what it leaves at
        the end. Raises ParameterError where there is no tokenizer.
        """
        if self._vocabulary is None:
            raise ParameterError(f"token_ids cannot become text: {_NO_TOKENIZER}", "token_ids")
        detokenizer = self._vocabulary.detokenizer(skip_special_tokens=skip_special_tokens)
        spell = partial(_spell, detokenizer, token_ids)
        return spell() if len(token_ids) <= _INLINE_TOKENS else await in_thread(spell)

    async def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Token ids of the prompt for a conversation. The template writes the special tokens. Errors as `render_chat`."""
        rendered = await in_thread(self.render_chat, messages)
        return await self.encode(rendered, add_special_tokens=False)

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> str:
        """The prompt for a conversation; see ChatTemplate.render."""
        if self._template is None:
            raise ParameterError(f"messages cannot be rendered: {_NO_TOKENIZER}; send token ids instead", "messages")
        return self._template.render(messages)

    async def get_tokenizer(self) -> Any:
        """The tokenizer as transformers has it, loaded once. ValueError where there is none, or transformers refuses it."""
        if self._vocabulary is None:
            raise ValueError(f"there is nothing to get: {_NO_TOKENIZER}")
        return self._own if self._own is not None else await in_thread(self._load_own)

    def _load_own(self) -> Any:
        from transformers import AutoTokenizer  # noqa: PLC0415

        with self._loading:
            if self._own is None:
                self._own = AutoTokenizer.from_pretrained(str(self._directory), local_files_only=True)
            return self._own
