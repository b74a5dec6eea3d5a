"""Linear layers, packed for the kernels while they are loaded."""

import torch
from torch import Tensor

from ...ipc.messages.config import EngineConfig
from ...kernels.interface import PackedWeight
from ..weights import WeightReader
from .base import Layer, join


class MergedLinear(Layer):
    """Several matrices with one input, as one product: y is the parts' outputs side by side.

    `parts` maps the name of each, below the prefix, to its number of outputs. A part is read, copied into the merged
    matrix and dropped; the merged one is dropped once packed.
    """

    packed: PackedWeight

    def __init__(
        self, *, config: EngineConfig, prefix: str = "", parts: dict[str, int], in_features: int, bias: bool = False
    ) -> None:
        super().__init__(config=config, prefix=prefix)
        self.parts = {join(prefix, name): size for name, size in parts.items()}
        self.in_features = in_features
        self.has_bias = bias
        self.bias: Tensor | None = None

    def load(self, weights: WeightReader) -> None:
        """Read `NAME.weight` and, with a bias, `NAME.bias` of each part."""
        total = sum(self.parts.values())
        dense = torch.empty((total, self.in_features), dtype=self.dtype)
        bias = torch.empty(total, dtype=self.dtype) if self.has_bias else None
        first = 0
        for name, size in self.parts.items():
            rows = slice(first, first + size)
            dense[rows] = weights.read(f"{name}.weight", (size, self.in_features), self.dtype)
            if bias is not None:
                bias[rows] = weights.read(f"{name}.bias", (size,), self.dtype)
            first += size
        self.packed = self.kernels.pack_linear(dense)
        self.bias = bias
        self.weight_bytes = self.packed.nbytes + (0 if bias is None else bias.nbytes)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, in_features] to [T, sum of the parts]."""
        return self.kernels.linear(x, self.packed, self.bias)


class Linear(MergedLinear):
    """One matrix; the prefix is its own name."""

    def __init__(
        self, *, config: EngineConfig, prefix: str = "", in_features: int, out_features: int, bias: bool = False
    ) -> None:
        super().__init__(config=config, parts={prefix: out_features}, in_features=in_features, bias=bias)
        self.prefix = prefix
