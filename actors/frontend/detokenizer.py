"""Incremental detokenisation: text grows as tokens come, and never ends in half a character."""

import codecs
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")  # a byte, in vocabularies that fall back to bytes
_SEARCHED = 4096  # ids looked at for an ordinary token


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, other bytes for characters from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_PRIMING = 8  # tokens of a prompt that can have a say in the text of what follows


class Detokenizer(Protocol):
    """Turns one request's output tokens into text."""

    def prime(self, tokens: Sequence[int]) -> None:
        """These come before the first token that is pushed, and their text has been shown."""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""

    def flush(self) -> str:
        """The end: what an unfinished character leaves, as U+FFFD."""


@dataclass(frozen=True, slots=True)
class Words:
    """How the tokens of a request become text."""

    detokenizer: Callable[[], Detokenizer]  # a fresh one for each answer
    bytes_of: Callable[[int], bytes]  # the bytes of one token


class Vocabulary:
    """What detokenisers share: the tokenizer, its special tokens, and the bytes of tokens seen so far."""

    def __init__(self, tokenizer: Tokenizer, *, byte_level: bool) -> None:
        """`byte_level`: each token is spelled in the alphabet of bytes, and decodes without regard to its neighbours."""
        self.tokenizer = tokenizer
        self.byte_level = byte_level
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(token for token, info in added.items() if info.special)
        self._added = {token: info.content for token, info in added.items()}
        self._bytes = {token: content.encode() for token, content in self._added.items()}
        self._alphabet = _byte_alphabet() if byte_level else {}
        self._before: list[int] | None = None  # see `_in_a_text`

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to a text; none for an id the tokenizer does not know. A special token's are its name."""
        known = self._bytes.get(token)
        if known is None:
            spelling = self.tokenizer.id_to_token(token) or ""
            known = self._bytes[token] = self._spelled(spelling) if self.byte_level else self._in_a_text(token, spelling)
        return known

    def _spelled(self, spelling: str) -> bytes:
        """The bytes a spelling stands for; one that is not in the alphabet of bytes stands for itself."""
        try:
            return bytes(self._alphabet[character] for character in spelling)
        except KeyError:
            return spelling.encode()

    def _in_a_text(self, token: int, spelling: str) -> bytes:
        """What a token adds behind another one, since decoders treat the first of a text differently."""
        alone = self._decode([token]) if spelling else ""
        byte = _BYTE_TOKEN.fullmatch(spelling)
        if byte is not None and alone != spelling:
            return bytes.fromhex(byte[1])
        if self._before is None:
            ordinary = range(min(self.tokenizer.get_vocab_size(), _SEARCHED))
            self._before = next(([other] for other in ordinary if self._stands_alone(other)), [])
        before = self._decode(self._before)
        both = self._decode([*self._before, token]) if spelling else ""
        return (both[len(before) :] if both.startswith(before) else alone).encode()

    def _stands_alone(self, token: int) -> bool:
        text = self._decode([token])
        return text.isalnum() and token not in self._added and self._decode([token, token]).startswith(text)

    def _decode(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=False)
        return text

    def detokenizer(self, *, skip_special_tokens: bool, spaces_between_special_tokens: bool = True) -> Detokenizer:
        """A fresh detokeniser for one answer."""
        skip = self.special if skip_special_tokens else frozenset[int]()
        if self.byte_level:  # whose decoder puts no spaces anywhere
            return ByteLevelDetokenizer(self, skip)
        joined = {} if spaces_between_special_tokens else self._added
        return WindowDetokenizer(self.tokenizer, skip, joined)


class NoText:
    """For answers whose text nobody wants."""

    def prime(self, tokens: Sequence[int]) -> None:
        """See Detokenizer."""

    def push(self, tokens: Sequence[int]) -> str:
        """See Detokenizer."""
        return ""

    def flush(self) -> str:
        """See Detokenizer."""
        return ""


class ByteLevelDetokenizer:
    """For byte-level BPE, where each token is a string of bytes: exact, and independent of the tokens around it."""

    def __init__(self, vocabulary: Vocabulary, skip: frozenset[int]) -> None:
        self._bytes_of = vocabulary.bytes_of
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def prime(self, tokens: Sequence[int]) -> None:
        """See Detokenizer. What comes before makes no difference."""

    def push(self, tokens: Iterable[int]) -> str:
        """See Detokenizer."""
        return self._decoder.decode(b"".join([self._bytes_of(token) for token in tokens if token not in self._skip]))

    def flush(self) -> str:
        """See Detokenizer."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For other tokenizers, whose decoding of a token depends on its neighbours: decode a short window twice and compare.

    The window starts where the text given out last started, which is never within a character.
    """

    def __init__(self, tokenizer: Tokenizer, skip: frozenset[int], joined: Mapping[int, str] | None = None) -> None:
        """`skip` are left out. No space comes between two of `joined`, whose texts it gives."""
        self._tokenizer = tokenizer
        self._skip = skip
        self._joined = joined or {}
        self._after_joined = False  # the last token is one of them
        self._tokens: list[int] = []
        self._start = 0  # first token of the text given out last
        self._shown = 0  # tokens whose text has been given out

    def prime(self, tokens: Sequence[int]) -> None:
        """See Detokenizer. The last few are enough."""
        self._tokens = [token for token in tokens[-_PRIMING:] if token not in self._skip]
        self._start, self._shown = 0, len(self._tokens)

    def push(self, tokens: Iterable[int]) -> str:
        """See Detokenizer."""
        shown = [token for token in tokens if token not in self._skip]
        return "".join(map(self._push_one, shown)) if self._joined else self._push(shown)

    def _push_one(self, token: int) -> str:
        text = self._push([token])
        special = self._joined.get(token)
        together = special is not None and self._after_joined
        self._after_joined = special is not None
        return text.removesuffix(special).rstrip(" ") + special if special is not None and together else text

    def _push(self, tokens: list[int]) -> str:
        self._tokens += tokens
        text = self._news()
        if not text or text.endswith("\ufffd"):
            return ""
        self._start, self._shown = self._shown, len(self._tokens)
        return text

    def flush(self) -> str:
        """See Detokenizer."""
        text = self._news()
        self._start, self._shown = self._shown, len(self._tokens)
        return text

    def _news(self) -> str:
        known = self._decode(self._tokens[self._start : self._shown])
        text = self._decode(self._tokens[self._start :])
        if text.startswith(known):
            return text[len(known) :]
        # Bytes that make no character spoil the ones before them, whose text has been given out; those after stand alone.
        return self._decode(self._tokens[self._shown :])

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return text
