"""Stop strings against a plain search, whatever the pieces that a text comes in."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringpost.actors.frontend.stop_strings import StopStrings


def searched(text: str, stops: Sequence[str], *, include: bool) -> tuple[str, str | None]:
    """What is shown of a text, and the stop string that ends it: the one that ends first, of several the one named first."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[:end] if include else text[: end - len(stop)], stop
    return text, None


def read(pieces: Sequence[str], stops: Sequence[str], *, include: bool) -> tuple[list[str], str | None]:
    """What is shown at each piece, and the stop string found."""
    watch, shown = StopStrings(stops, include=include), []
    for piece in pieces:
        text, found = watch.push(piece)
        shown.append(text)
        if found is not None:
            return shown, found
    return [*shown, watch.flush()], None


LETTERS = st.text("ab", max_size=6)


@given(st.lists(LETTERS, max_size=8), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4), st.booleans())
def test_pieces_make_no_difference(pieces: list[str], stops: list[str], include: bool) -> None:
    shown, found = read(pieces, stops, include=include)
    assert ("".join(shown), found) == searched("".join(pieces), stops, include=include)


@given(st.lists(LETTERS, max_size=8), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4))
def test_only_what_may_become_a_match_is_held_back(pieces: list[str], stops: list[str]) -> None:
    watch, text, shown = StopStrings(stops, include=False), "", ""
    for piece in pieces:
        more, found = watch.push(piece)
        text, shown = text + piece, shown + more
        if found is not None:
            return
        held = text[len(shown) :]
        assert text.startswith(shown)
        assert any(stop.startswith(held) for stop in stops)
        longer = [text[start:] for start in range(len(shown))]
        assert not [end for end in longer if any(len(stop) > len(end) and stop.startswith(end) for stop in stops)]


@pytest.mark.parametrize("stops", [["```", "FD", "EF", "zzz"], ["zzz", "EF", "FD", "```"]])
def test_the_match_that_ends_first_counts(stops: list[str]) -> None:
    assert read(["DEF", "DEF"], stops, include=False) == (["D"], "EF")


def test_the_beginning_of_a_stop_string_is_never_shown() -> None:
    assert read(["DEF"] * 3, ["DEFDEFD"], include=False) == (["", "", ""], "DEFDEFD")
    assert read(["DEF"] * 2, ["DEFDEFX"], include=False) == (["", "", "DEFDEF"], None)


def test_of_two_that_end_together_the_one_named_first_counts() -> None:
    assert read(["abc"], ["bc", "abc"], include=False) == (["a"], "bc")
    assert read(["abc"], ["abc", "bc"], include=False) == ([""], "abc")


def test_a_stop_string_that_is_shown_holds_nothing_back() -> None:
    assert read(["ab", "cd"], ["bcd"], include=True) == (["ab", "cd"], "bcd")
    assert read(["ab", "cde"], ["bcd"], include=True) == (["ab", "cd"], "bcd")


def test_a_match_that_does_not_count_yet() -> None:
    watch = StopStrings(["ab"], include=False)
    assert watch.push("xabx", counts=False) == ("xabx", None)
    assert watch.push("a", counts=False) == ("", None)
    assert watch.push("bab") == ("", "ab"), "a match that ends in text that counts may begin before it"
