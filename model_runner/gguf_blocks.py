"""Blocks of GGUF, as a conversion keeps them beside the dense weights, and the quantised weights that they are."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels.quantized import GROUP, QuantizedWeight, check_finite

_HALF = 2  # bytes


def _q8_0(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """A scale, then the values."""
    return blocks[..., _HALF:].view(torch.int8), _halves(blocks, 0), None


def _q4_0(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """A scale, then the values; 8 means zero."""
    scales = _halves(blocks, 0)
    return _nibbles(blocks[..., _HALF:]), scales, scales * -8


def _q4_1(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """A scale, a minimum, then the values."""
    return _nibbles(blocks[..., 2 * _HALF :]), _halves(blocks, 0), _halves(blocks, 1)


def _halves(blocks: Tensor, index: int) -> Tensor:
    return blocks[..., _HALF * index : _HALF * (index + 1)].contiguous().view(torch.float16).squeeze(-1)


def _nibbles(packed: Tensor) -> Tensor:
    """The low halves of the bytes are the first half of the values."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


_Reader = Callable[[Tensor], tuple[Tensor, Tensor, Tensor | None]]

# GGUF's types that mean exactly the numbers of a quantisation: which, the bytes of a block, and what is in them.
_TYPES: dict[str, tuple[str, int, _Reader]] = {
    "Q8_0": ("int8", _HALF + GROUP, _q8_0),
    "Q4_0": ("int4", _HALF + GROUP // 2, _q4_0),
    "Q4_1": ("int4", 2 * _HALF + GROUP // 2, _q4_1),
}
# Eight bits serve where four are asked for: whoever made the file had a reason to spend them on this tensor.
_SERVING = {"int8": ("Q8_0",), "int4": ("Q4_0", "Q4_1", "Q8_0")}


def block_names(name: str, quantization: str) -> list[str]:
    """Under which names a tensor's blocks may be kept that serve this quantisation."""
    return [f"{name}.{kind}" for kind in _SERVING[quantization]]


def block_shape(kept_as: str, shape: tuple[int, int]) -> tuple[int, int]:
    """Of the bytes uint8 that are kept under this name, for a tensor [out, in]."""
    _, size, _ = _TYPES[kept_as.rpartition(".")[2]]
    return shape[0], shape[1] // GROUP * size


def from_blocks(blocks: Tensor, kept_as: str) -> QuantizedWeight:
    """The weight that these bytes are, number by number; ValueError where a scale is none."""
    quantization, size, read = _TYPES[kept_as.rpartition(".")[2]]
    values, scales, minima = read(blocks.reshape(blocks.shape[0], -1, size))
    weight = QuantizedWeight(quantization, values.flatten(1), scales, minima)
    check_finite(weight)
    return weight
