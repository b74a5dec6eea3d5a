"""View: the beginning of a sequence that grows, as one that does not."""

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import eq
from typing import TypeVar, overload

T = TypeVar("T")


class View(Sequence[T]):
    """The first items of a sequence that only grows, without a copy of them. Slices are lists; `list(view)` copies all.

    It has no `__radd__`: Python would call that for `some_list += view`, which is to extend the list.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: Sequence[T]) -> None:
        self._items = items
        self._length = len(items)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._items[place] for place in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(f"there are {self._length} items, got index {index}")
        return self._items[index % self._length]

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(other) == self._length and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Sequence[T]) -> list[T]:
        return [*self, *other]

    def __repr__(self) -> str:
        return repr(list(self))
