"""Views: the beginning of a list that grows, as a sequence that does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringpost.actors.frontend.view import View


@given(st.lists(st.integers(), max_size=6), st.lists(st.integers(), max_size=3), st.slices(8))
def test_it_reads_like_the_list_of_that_moment(items: list[int], later: list[int], part: slice) -> None:
    grown = list(items)
    view = View(grown)
    grown += later
    assert view == items
    assert items == view
    assert list(view) == items
    assert len(view) == len(items)
    assert view[part] == items[part]
    assert [view[place] for place in range(-len(items), len(items))] == items * 2
    more = [1]
    assert view + more == items + more
    same = more
    more += view
    assert same == [1, *items]
    assert repr(view) == repr(items)
    for place in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            view[place]


def test_it_differs_from_other_sequences() -> None:
    assert View([1, 2]) != [1, 3]
    assert View([1, 2]) != [1]
    assert View([1, 2]) != 5
    assert View([]) != ""
