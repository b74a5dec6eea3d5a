"""What a benchmark freezes for its figures' sake does not stay frozen in the caller's process."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def thawed_afterwards() -> Iterator[None]:
    """After the block the garbage collector looks at everything again."""
    try:
        yield
    finally:
        gc.unfreeze()
