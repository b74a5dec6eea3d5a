"""Byte-level detokenising with the demo model's tokenizer: exact, token by token."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from ringpost.actors.frontend.detokenizer import ByteLevelDetokenizer, Detokenizer, Vocabulary
from ringpost.ipc.messages.config import ModelConfig
from ringpost.model_runner.checkpoint.resolve import resolve_checkpoint

HALF_EMOJI = 10813  # the first two bytes of four


@cache
def vocabulary() -> Vocabulary:
    directory = Path(resolve_checkpoint(ModelConfig()).tokenizer_directory)
    return Vocabulary(Tokenizer.from_file(str(directory / "tokenizer.json")), byte_level=True)


def fresh(*, skip_special_tokens: bool = True) -> Detokenizer:
    return vocabulary().detokenizer(skip_special_tokens=skip_special_tokens)


def pieces(tokens: list[int], detokenizer: Detokenizer, size: int = 1) -> list[str]:
    return [detokenizer.push(tokens[start : start + size]) for start in range(0, len(tokens), size)]


@given(st.text(max_size=60), st.integers(1, 5))
@settings(deadline=None)
def test_text_comes_back_whole_and_never_ends_in_half_a_character(text: str, size: int) -> None:
    tokens = vocabulary().tokenizer.encode(text).ids
    detokenizer = fresh()
    so_far = ""
    for piece in pieces(tokens, detokenizer, size):
        so_far += piece
        assert vocabulary().tokenizer.decode(tokens).startswith(so_far)
    assert so_far == vocabulary().tokenizer.decode(tokens)
    assert detokenizer.flush() == ""


@given(st.lists(st.integers(0, 49151), max_size=30), st.booleans())
@settings(deadline=None)
def test_any_tokens_give_what_the_tokenizer_gives(tokens: list[int], skip: bool) -> None:
    detokenizer = fresh(skip_special_tokens=skip)
    text = "".join(pieces(tokens, detokenizer)) + detokenizer.flush()
    assert text == vocabulary().tokenizer.decode(tokens, skip_special_tokens=skip)


def test_half_characters_become_replacement_characters_one_by_one() -> None:
    detokenizer = fresh()
    given_out = pieces([HALF_EMOJI] * 6, detokenizer)
    assert given_out == ["", *["\ufffd"] * 5]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_a_character_appears_with_its_last_byte() -> None:
    tokens = vocabulary().tokenizer.encode("🦜").ids
    assert len(tokens) > 1
    assert pieces(tokens, fresh()) == [*[""] * (len(tokens) - 1), "🦜"]


def test_special_tokens_are_left_out_or_shown() -> None:
    tokens = [1, *vocabulary().tokenizer.encode("a b").ids, 2]
    assert fresh().push(tokens) == "a b"
    assert fresh(skip_special_tokens=False).push(tokens) == "<|im_start|>a b<|im_end|>"


@pytest.mark.parametrize("token", [49152, 10**6, 2**31])
def test_an_unknown_token_gives_nothing(token: int) -> None:
    a = vocabulary().tokenizer.encode("a").ids
    assert fresh().push([*a, token, *a]) == "aa"


def test_requests_do_not_mix() -> None:
    first, second = fresh(), fresh()
    assert first.push([HALF_EMOJI]) == ""
    assert second.push(vocabulary().tokenizer.encode("x").ids) == "x"
    assert first.flush() == "\ufffd"


def test_a_spelling_that_is_not_in_the_alphabet_of_bytes_stands_for_itself() -> None:
    tokenizer = Tokenizer(models.WordLevel({"Ġa": 0, "b c": 1, "▁": 2}, unk_token="Ġa"))
    tokenizer.decoder = decoders.ByteLevel()
    detokenizer = Vocabulary(tokenizer, byte_level=True).detokenizer(skip_special_tokens=True)
    assert isinstance(detokenizer, ByteLevelDetokenizer)
    assert detokenizer.push([0, 1, 2]) == tokenizer.decode([0, 1, 2]) == " ab c▁"


def test_the_bytes_of_tokens_are_those_of_the_text() -> None:
    tokens = vocabulary().tokenizer.encode("a 🙂é").ids
    assert b"".join(map(vocabulary().bytes_of, tokens)) == "a 🙂é".encode()
    assert vocabulary().bytes_of(HALF_EMOJI) == b"\xf0\x9f"
    assert (vocabulary().bytes_of(2), vocabulary().bytes_of(10**6)) == (b"<|im_end|>", b"")
