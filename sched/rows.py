"""RowPool: which rows of the workers' persistent state are free."""

import heapq


class RowPool:
    """Rows 0 .. num_rows - 1. The lowest free one is taken first, which keeps the workers' busy rows together."""

    __slots__ = ("_free", "num_rows")

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._free = list(range(num_rows))  # ascending, hence a heap

    def take(self) -> int:
        """The lowest free row. The caller has made sure that there is one."""
        return heapq.heappop(self._free)

    def free(self, row: int) -> None:
        """Give a row back."""
        heapq.heappush(self._free, row)

    def free_rows(self) -> tuple[int, ...]:
        """All free rows, for the integrity check."""
        return tuple(self._free)
