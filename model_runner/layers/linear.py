"""Linear layers, packed for the kernels while they are loaded."""

import torch
from torch import Tensor

from ...ipc.messages.config import EngineConfig
from ...kernels.interface import PackedWeight
from ..weights import WeightReader
from .base import Layer, join
from .quantization import quantization_of, read_merged


class MergedLinear(Layer):
    """Several matrices with one input, as one product: y is the parts' outputs side by side.

    `parts` maps the name of each, below the prefix, to its number of outputs. A part is read, quantised if it is to be, copied
    into the merged matrix and dropped; the merged one is dropped once packed.
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
        self.modules_by_inputs = dict.fromkeys(self.parts, in_features)
        self.quantization = quantization_of(config, self.parts, in_features)

    def load(self, weights: WeightReader) -> None:
        """Read `NAME.weight` and, with a bias, `NAME.bias` of each part."""
        self.packed = self._pack(weights, {f"{name}.weight": (size, self.in_features) for name, size in self.parts.items()})
        if self.has_bias:
            biases = [weights.read(f"{name}.bias", (size,), self.dtype) for name, size in self.parts.items()]
            self.bias = torch.cat(biases)
        self.weight_bytes = self.packed.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def _pack(self, weights: WeightReader, shapes: dict[str, tuple[int, int]]) -> PackedWeight:
        if self.quantization is not None:
            return self.kernels.pack_quantized(read_merged(weights, shapes, self.quantization), self.dtype)
        dense = torch.empty((sum(self.parts.values()), self.in_features), dtype=self.dtype)
        first = 0
        for name, shape in shapes.items():
            dense[first : first + shape[0]] = weights.read(name, shape, self.dtype)
            first += shape[0]
        return self.kernels.pack_linear(dense)

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
