"""Incremental detokenisation: text grows as tokens come, and never ends in half a character."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from tokenizers import Tokenizer


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, other bytes for characters from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class Detokenizer(Protocol):
    """Turns one request's output tokens into text."""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""

    def flush(self) -> str:
        """The end: what an unfinished character leaves, as U+FFFD."""


class Vocabulary:
    """What detokenisers share: the tokenizer, its special tokens, and the bytes of tokens seen so far."""

    def __init__(self, tokenizer: Tokenizer, *, byte_level: bool) -> None:
        self.tokenizer = tokenizer
        self._byte_level = byte_level
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(token for token, info in added.items() if info.special)
        self._bytes: dict[int, bytes] = {token: info.content.encode() for token, info in added.items()}
        self._alphabet = _byte_alphabet()

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token of a byte-level vocabulary; none for an id the tokenizer does not know."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._spelled(self.tokenizer.id_to_token(token) or "")
        return known

    def _spelled(self, spelling: str) -> bytes:
        """The bytes a spelling stands for; one that is not in the alphabet of bytes stands for itself."""
        try:
            return bytes(self._alphabet[character] for character in spelling)
        except KeyError:
            return spelling.encode()

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        """A fresh detokeniser for one request."""
        skip = self.special if skip_special_tokens else frozenset[int]()
        return ByteLevelDetokenizer(self, skip) if self._byte_level else WindowDetokenizer(self.tokenizer, skip)


class ByteLevelDetokenizer:
    """For byte-level BPE, where each token is a string of bytes: exact, and independent of the tokens around it."""

    def __init__(self, vocabulary: Vocabulary, skip: frozenset[int]) -> None:
        self._bytes_of = vocabulary.bytes_of
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

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

    def __init__(self, tokenizer: Tokenizer, skip: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skip = skip
        self._tokens: list[int] = []
        self._start = 0  # first token of the text given out last
        self._shown = 0  # tokens whose text has been given out

    def push(self, tokens: Iterable[int]) -> str:
        """See Detokenizer."""
        self._tokens += [token for token in tokens if token not in self._skip]
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
