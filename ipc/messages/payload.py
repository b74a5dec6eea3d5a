"""Large binary content of a message: crosses beside it, without the encoder's copy."""

from typing import Any


class Payload:
    """Bytes of anything with a contiguous buffer: bytes, an array, another memoryview.

    The sender's buffer is copied once, into the mailbox, before `send` returns. The receiver's `data` is its own: read-only
    or not, it stays valid for as long as it is kept.
    """

    __slots__ = ("data",)

    def __init__(self, data: Any) -> None:
        """Raises TypeError for an object without a buffer, or with one that is not contiguous."""
        view = memoryview(data)
        if not view.c_contiguous:
            raise TypeError(f"a payload must be contiguous, got strides {view.strides} for shape {view.shape}")
        self.data: memoryview = view.cast("B") if view.nbytes else memoryview(b"")

    def __len__(self) -> int:
        """Its bytes."""
        return len(self.data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Payload) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data.tobytes())

    def __repr__(self) -> str:
        return f"Payload({len(self.data)} bytes)"
