"""Reads tensors of a checkpoint by name."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..kernels.quantized import QuantizedWeight
from .checkpoint.weight_files import BLOCKS_FILE
from .gguf_blocks import block_names, block_shape, from_blocks

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_READABLE = ("F64", "F32", "F16", "BF16")


class WeightError(ValueError):
    """A tensor of the checkpoint is missing, of another shape or type than config.json promises, or unreadable."""


class WeightReader:
    """The tensors of a directory of safetensors, in one file or in shards with an index.

    Files are mapped into memory when first needed and stay mapped as long as the reader lives. Every method raises
    WeightError.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._files = self._list_files()
        blocks = self._directory / BLOCKS_FILE
        self._kept = frozenset(self._keys(blocks) if blocks.is_file() else ())
        self._handles: dict[Path, Any] = {}

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._files)

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor of this name, which must have this shape, converted to dtype; None: as it is stored."""
        file = self._files.get(name)
        if file is None:
            raise WeightError(f"tensor {name!r} of shape {list(shape)} is not in {self._directory}")
        tensor = self._tensor(file, name, shape, _READABLE)
        return tensor if dtype is None else tensor.to(dtype)

    def read_quantized(self, name: str, shape: tuple[int, int], quantization: str) -> QuantizedWeight | None:
        """The same tensor, if the checkpoint also has it quantised in this way, or with more bits; else None."""
        for kept_as in block_names(name, quantization):
            if kept_as in self._kept:
                wanted = block_shape(kept_as, shape)
                blocks = self._tensor(self._directory / BLOCKS_FILE, kept_as, wanted, ("U8",))
                return from_blocks(blocks, kept_as)
        return None

    def _tensor(self, file: Path, name: str, shape: tuple[int, ...], types: tuple[str, ...]) -> torch.Tensor:
        try:
            part = self._open(file).get_slice(name)
            found, stored = tuple(part.get_shape()), part.get_dtype()
            if found != shape:
                raise WeightError(
                    f"tensor {name!r} in {file}: expected shape {list(shape)} from config.json, found {list(found)}"
                )
            if stored not in types:
                raise WeightError(f"tensor {name!r} in {file}: type {stored} is not one of {', '.join(types)}")
            tensor: torch.Tensor = self._open(file).get_tensor(name)
            return tensor
        except (SafetensorError, OSError) as error:
            raise WeightError(
                f"tensor {name!r} of shape {list(shape)} cannot be read from {file} (truncated or damaged?): {error}"
            ) from error

    def _list_files(self) -> dict[str, Path]:
        index = self._directory / _INDEX
        if not index.exists():
            single = self._directory / _SINGLE
            if not single.is_file():
                raise WeightError(f"no {_SINGLE} and no {_INDEX} in {self._directory}")
            return dict.fromkeys(self._keys(single), single)
        try:
            weight_map = json.loads(index.read_text())["weight_map"]
            return {name: self._directory / file for name, file in weight_map.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightError(f"{index} is not an index of safetensors shards: {error!r}") from error

    def _keys(self, file: Path) -> list[str]:
        try:
            with safe_open(file, framework="pt") as handle:
                return list(handle.keys())
        except (SafetensorError, OSError) as error:
            raise WeightError(f"{file} cannot be read (truncated or damaged?): {error}") from error

    def _open(self, file: Path) -> Any:
        if file not in self._handles:
            self._handles[file] = safe_open(file, framework="pt")
        return self._handles[file]
