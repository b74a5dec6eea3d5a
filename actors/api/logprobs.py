"""Logprobs as replies spell them."""

from collections.abc import Iterator, Sequence

import msgspec

from ..frontend.logprobs import Logprob, Position, PromptLogprobs, SampleLogprobs
from .responses import ChatLogprob, ChatLogprobs, CompletionLogprobs, PromptLogprob, TopLogprob

_LEAST = -9999.0  # what is impossible: JSON has no infinity


def completion_logprobs(
    texts: Sequence[str], token_ids: Sequence[int], places: Sequence[Position | None], offset: int, *, as_ids: bool
) -> CompletionLogprobs:
    """Of tokens with these texts, the first of which begins at character `offset`. `as_ids`: name tokens by their ids."""
    told = CompletionLogprobs([], [], [], [])
    for text, token, place in zip(texts, token_ids, places, strict=True):
        told.text_offset.append(offset)
        told.tokens.append(_id_name(token) if as_ids else text)
        told.token_logprobs.append(None if place is None else _finite(place[token]))
        told.top_logprobs.append(None if place is None else _by_name(place, as_ids=as_ids))
        offset += len(text)
    return told


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Those of tokens and of the tokens behind them."""
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


def _by_name(place: Position, *, as_ids: bool) -> dict[str, float]:
    """Tokens that look the same keep an entry each."""
    named: dict[str, float] = {}
    for token, entry in place.items():
        name = _id_name(token) if as_ids else _byte_name(token, entry.token_bytes)
        named[_id_name(token) if name in named else name] = _finite(entry)
    return named


def _byte_name(token: int, spelled: bytes) -> str:
    """A token's own text; of a part of a character, its bytes."""
    try:
        return spelled.decode() or _id_name(token)
    except UnicodeDecodeError:
        return "bytes:" + "".join([f"\\x{byte:02x}" for byte in spelled])


def chat_logprobs(
    token_ids: Sequence[int], places: SampleLogprobs | None, num_top: int, *, as_ids: bool
) -> ChatLogprobs | None:
    """Of tokens and the `num_top` likeliest (-1: all) in the place of each; None where there are none."""
    if not places:
        return None
    content = []
    for token, place in zip(token_ids, places, strict=True):
        top = [TopLogprob(*_spelled(other, entry, as_ids=as_ids)) for other, entry in _likeliest(place, num_top)]
        content.append(ChatLogprob(*_spelled(token, place[token], as_ids=as_ids), top))
    return ChatLogprobs(content)


def _likeliest(place: Position, num_top: int) -> Iterator[tuple[int, Logprob]]:
    """The token itself, which stands first, is among them only if it is one."""
    entries = list(place.items())
    chosen = entries[1:] if 0 <= num_top < len(entries) else entries
    return iter(sorted(chosen, key=_falling))


def _falling(entry: tuple[int, Logprob]) -> float:
    return -entry[1].logprob


def _spelled(token: int, entry: Logprob, *, as_ids: bool) -> tuple[str, float, list[int]]:
    return _id_name(token) if as_ids else entry.decoded_token or "", _finite(entry), list(entry.token_bytes)


def prompt_logprobs(places: PromptLogprobs) -> msgspec.Raw:
    """Of the tokens of a prompt, in JSON."""
    return msgspec.Raw(msgspec.json.encode([None if place is None else _prompt_place(place) for place in places]))


def _prompt_place(place: Position) -> dict[int, PromptLogprob]:
    return {token: PromptLogprob(_finite(entry), entry.rank, entry.decoded_token) for token, entry in place.items()}


def _id_name(token: int) -> str:
    return f"token_id:{token}"


def _finite(entry: Logprob) -> float:
    return entry.logprob if entry.logprob > _LEAST else _LEAST
