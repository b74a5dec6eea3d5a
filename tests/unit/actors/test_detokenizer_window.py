"""Detokenising where a token's text depends on its neighbours, as with SentencePiece and bytes as a last resort."""

from functools import cache

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ringpost.actors.frontend.detokenizer import Vocabulary, WindowDetokenizer

LETTERS = "▁abcdé"
MERGES = [("▁", "a"), ("b", "c"), ("▁a", "b"), ("▁", "▁"), ("▁a", "bc")]
FIRST_BYTE = 3


@cache
def tokenizer() -> Tokenizer:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS]
    tokens += [left + right for left, right in MERGES]
    vocab = {token: index for index, token in enumerate(tokens)}
    model = models.BPE(vocab=vocab, merges=MERGES, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    built = Tokenizer(model)
    built.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    built.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    built.add_special_tokens(["<s>", "</s>"])
    return built


def fresh(*, skip: bool = True) -> WindowDetokenizer:
    detokenizer = Vocabulary(tokenizer(), byte_level=False).detokenizer(skip_special_tokens=skip)
    assert isinstance(detokenizer, WindowDetokenizer)
    return detokenizer


@given(st.text(st.sampled_from("  abcdé🙂日ß\n"), max_size=40), st.lists(st.integers(0, 4), min_size=1, max_size=8))
@example("🙂🙂🙂🙂 a", [1])  # more bytes in a row than any short window holds
@settings(deadline=None, max_examples=300)
def test_text_comes_back_whole_and_never_ends_in_half_a_character(text: str, sizes: list[int]) -> None:
    tokens = tokenizer().encode(text).ids
    whole = tokenizer().decode(tokens)
    detokenizer = fresh()
    so_far, rest, turn = "", tokens, 0
    while rest:
        size = sizes[turn % len(sizes)] or (turn % 2)  # nothing, now and then
        so_far += detokenizer.push(rest[:size])
        assert whole.startswith(so_far)
        rest, turn = rest[size:], turn + 1
    assert so_far + detokenizer.flush() == whole
    assert detokenizer.flush() == ""


def test_a_space_is_lost_at_the_start_of_the_text_only() -> None:
    tokens = tokenizer().encode("a a a").ids
    detokenizer = fresh()
    assert [detokenizer.push([token]) for token in tokens] == ["a", " a", " a"]


def test_a_character_in_bytes_appears_with_its_last_byte_or_at_the_end_as_replacements() -> None:
    emoji = [FIRST_BYTE + byte for byte in "🙂".encode()]
    detokenizer = fresh()
    assert [detokenizer.push([token]) for token in emoji] == ["", "", "", "🙂"]
    assert [detokenizer.push([token]) for token in emoji[:2]] == ["", ""]
    assert detokenizer.flush() == "\ufffd\ufffd"


def test_special_tokens_are_left_out_or_shown() -> None:
    tokens = [1, *tokenizer().encode("a b").ids, 2]
    skipping, showing = fresh(), fresh(skip=False)
    assert "".join([skipping.push([token]) for token in tokens]) == "a b"
    assert "".join([showing.push([token]) for token in tokens]) == "<s> a b</s>"


def test_bytes_that_make_no_character_do_not_spoil_what_was_shown() -> None:
    emoji = [FIRST_BYTE + byte for byte in "🙂".encode()]
    letter = tokenizer().token_to_id("c")
    assert letter is not None
    detokenizer = fresh()
    shown = [detokenizer.push([token]) for token in [*emoji, FIRST_BYTE + 0x80, letter]]
    assert shown == ["", "", "", "🙂", "", "\ufffdc"]


def test_the_bytes_of_a_token_are_those_it_adds_within_a_text() -> None:
    """Its leading space counts, and a byte is a byte; special tokens show their names, unknown ids nothing."""
    vocabulary = Vocabulary(tokenizer(), byte_level=False)
    tokens = [1, *tokenizer().encode("a abc🙂").ids, FIRST_BYTE + 0x80, 100_000]
    given = [vocabulary.bytes_of(token) for token in tokens]
    assert given == [b"<s>", b" a", b" abc", *(bytes([byte]) for byte in "🙂".encode()), b"\x80", b""]
    assert given == [vocabulary.bytes_of(token) for token in tokens]


def test_a_space_that_the_decoder_puts_between_special_tokens_can_be_left_out() -> None:
    built = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<x>": 2, "<y>": 3}, unk_token="a"))
    built.add_special_tokens(["<x>"])
    built.add_tokens(["<y>"])
    vocabulary = Vocabulary(built, byte_level=False)  # without a decoder, all tokens are joined by spaces
    texts = []
    for spaces in (True, False):
        detokenizer = vocabulary.detokenizer(skip_special_tokens=False, spaces_between_special_tokens=spaces)
        texts.append("".join([detokenizer.push([token]) for token in (0, 2, 3, 2, 1, 2)]) + detokenizer.flush())
        whole = vocabulary.detokenizer(skip_special_tokens=False, spaces_between_special_tokens=spaces)
        assert whole.push([0, 2, 3, 2, 1, 2]) + whole.flush() == texts[-1]
    assert texts == ["a <x> <y> <x> b <x>", "a <x><y><x> b <x>"]


def test_behind_a_prompt_the_first_space_is_not_lost() -> None:
    first, *tokens = tokenizer().encode("a a a").ids
    for prompt in ([first], [first] * 20):
        detokenizer = fresh()
        detokenizer.prime(prompt)
        assert [detokenizer.push([token]) for token in tokens] == [" a", " a"]
