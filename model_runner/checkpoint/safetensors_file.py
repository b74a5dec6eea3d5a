"""The safetensors file format: writing a file tensor by tensor, and checking one by its header alone.

A file is an 8-byte little-endian length, that many bytes of JSON (tensor name -> dtype, shape, data_offsets) and then
the tensors' bytes. The safetensors library wants every tensor in memory at once to write a file; here one is enough.
"""

import json
import math
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .errors import CheckpointError

ITEM_BYTES = {"F32": 4, "BF16": 2, "U8": 1}  # the element types that are written here
MAX_HEADER_BYTES = 100_000_000  # the format's own limit


class TensorSpec(NamedTuple):
    """What a file's header says about one tensor to be written."""

    name: str
    dtype: str  # a key of ITEM_BYTES
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Length of the tensor's data."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def write_safetensors(path: Path, specs: Sequence[TensorSpec], contents: Iterable[bytes]) -> None:
    """Write `path`: `contents` yields the little-endian row-major bytes of each of `specs`, in the same order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in specs:
        begin, end = end, end + spec.num_bytes
        header[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": (begin, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # readers map the file and expect aligned data
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for spec, content in zip(specs, contents, strict=True):
            assert len(content) == spec.num_bytes, f"{spec.name}: {len(content)} bytes for {spec}"
            file.write(content)


def check_safetensors(path: Path) -> None:
    """Raise CheckpointError unless `path` is a safetensors file of exactly the length its header calls for."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        header_bytes = int.from_bytes(start, "little")
        if len(start) < 8 or header_bytes > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path} is not a safetensors file: it does not start with the length of a header")
        text = file.read(header_bytes)
    if len(text) < header_bytes:
        raise CheckpointError(f"{path} is cut short: {size} bytes, but its header alone is {header_bytes} long")
    try:
        tensors = {name: entry for name, entry in json.loads(text).items() if name != "__metadata__"}
        data_bytes = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
    except (ValueError, AttributeError, LookupError, TypeError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: its header is no table of tensors ({error})") from error
    wanted = 8 + header_bytes + data_bytes
    if size != wanted:
        raise CheckpointError(f"{path} is {size} bytes long, its header calls for {wanted}: copy or download it again")
