"""The pool of free rows."""

from ringpost.sched.rows import RowPool


def test_the_lowest_free_row_is_taken() -> None:
    rows = RowPool(4)
    assert [rows.take() for _ in range(4)] == [0, 1, 2, 3]
    for row in (3, 1, 2):
        rows.free(row)
    assert [rows.take(), rows.take()] == [1, 2]
    assert rows.free_rows() == (3,)
