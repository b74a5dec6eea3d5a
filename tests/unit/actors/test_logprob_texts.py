"""The texts and columns of logprobs."""

import codecs
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringpost.actors.frontend.logprobs import FlatLogprobs, Logprob, LogprobDecoder, unfinished_end
from ringpost.ipc.messages.outputs import TokenLogprobs


def bytes_of(token: int) -> bytes:
    """Token ids that are their bytes, in decimal: 1240159 is f0 9f, with a leading 1."""
    digits = str(token)[1:]
    return bytes(int(digits[place : place + 3]) for place in range(0, len(digits), 3))


def token(text: bytes) -> int:
    return int("1" + "".join(f"{byte:03}" for byte in text))


def top(*entries: tuple[int, float], logprob: float = -1.0, rank: int = 9) -> TokenLogprobs:
    ids, logprobs = array("i", [one[0] for one in entries]), array("f", [one[1] for one in entries])
    return TokenLogprobs(logprob, rank, ids.tobytes(), logprobs.tobytes())


@given(st.binary(max_size=12))
def test_an_unfinished_end_is_what_the_decoder_keeps(text: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(text)
    assert unfinished_end(text) == decoder.getstate()[0]


@given(st.text(max_size=8), st.lists(st.integers(1, 4), min_size=1))
def test_texts_of_chosen_tokens_join_to_the_text(text: str, sizes: list[int]) -> None:
    rest, decoder, joined = text.encode(errors="replace"), LogprobDecoder(bytes_of), ""
    expected = rest.decode()
    for size in sizes * len(rest):
        piece, rest = rest[:size], rest[size:]
        chosen = token(piece)
        joined += decoder.decode(chosen, TokenLogprobs(-1.0, 1))[chosen].decoded_token or ""
    assert joined == expected


def test_the_chosen_token_comes_first_and_once() -> None:
    a, b, c = token(b"a"), token(b"b"), token(b"c")
    position = LogprobDecoder(bytes_of).decode(b, top((a, -0.5), (b, -1.0), (c, -2.0), logprob=-1.0, rank=2))
    assert position == {
        b: Logprob(-1.0, 2, "b", b"b"),
        a: Logprob(-0.5, 1, "a", b"a"),
        c: Logprob(-2.0, 3, "c", b"c"),
    }
    assert next(iter(position)) == b


def test_others_are_read_in_the_same_place() -> None:
    lead, rest, letter = token(b"\xf0\x9f"), token(b"\x91\x8d"), token(b"x")
    decoder = LogprobDecoder(bytes_of)
    first = decoder.decode(lead, top((letter, -1.0)))
    assert [(entry.decoded_token, entry.token_bytes) for entry in first.values()] == [("", b"\xf0\x9f"), ("x", b"x")]
    second = decoder.decode(rest, top((letter, -1.0), (lead, -2.0)))
    assert [entry.decoded_token for entry in second.values()] == ["\U0001f44d", "\ufffdx", "\ufffd"]


def test_without_ids_it_is_the_whole_vocabulary() -> None:
    logprobs = TokenLogprobs(-2.0, 3, b"", array("f", [-1.0, -0.5, -2.0]).tobytes())
    position = LogprobDecoder(lambda one: bytes([97 + one])).decode(2, logprobs)
    assert [(one, entry.logprob, entry.rank) for one, entry in position.items()] == [
        (2, -2.0, 3),
        (0, -1.0, None),
        (1, -0.5, None),
    ]


def test_columns_read_like_a_list_of_dicts() -> None:
    places = [{1: Logprob(-0.5, 1, "a", b"a"), 2: Logprob(-1.5, None, "b", b"b")}, {}, {3: Logprob(-2.5, 7, None, b"")}]
    flat = FlatLogprobs()
    for place in places:
        flat.append(place)
    assert len(flat) == 3
    assert flat == places
    assert list(flat) == places
    assert flat[-1] == places[2]
    assert flat[1:] == places[1:]
    assert isinstance(flat[1:], FlatLogprobs)
    assert flat != places[:2]
    assert flat[:1] != [3]
    assert flat[:1] != "x"
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"there are 3 places, got {index}"):
            flat[index]
