"""Token embedding and the projection back to the vocabulary."""

import torch.nn.functional as F
from torch import Tensor

from ...ipc.messages.config import EngineConfig
from ...kernels.interface import PackedWeight
from ..weights import WeightReader
from .base import Layer
from .quantization import quantization_of, read_quantized


class Embedding(Layer):
    """Table of token vectors."""

    weight: Tensor

    def __init__(self, *, config: EngineConfig, prefix: str = "", vocab_size: int, size: int) -> None:
        super().__init__(config=config, prefix=prefix)
        self.shape = (vocab_size, size)

    def load(self, weights: WeightReader) -> None:
        """Read `PREFIX.weight`."""
        self.weight = weights.read(f"{self.prefix}.weight", self.shape, self.dtype)
        self.weight_bytes = self.weight.nbytes

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens int64 [T] to [T, size]."""
        return F.embedding(tokens, self.weight)


class LMHead(Layer):
    """Projection to logits. Tied, it packs the embedding's table, whose dense form stays for the look-up."""

    packed: PackedWeight

    def __init__(
        self, *, config: EngineConfig, prefix: str = "", vocab_size: int, size: int, tied_to: str | None = None
    ) -> None:
        super().__init__(config=config, prefix=prefix)
        self.shape = (vocab_size, size)
        self.source = prefix if tied_to is None else tied_to
        self.modules_by_inputs = {prefix: size}
        self.quantization = quantization_of(config, [prefix], size)

    def load(self, weights: WeightReader) -> None:
        """Read `PREFIX.weight`, or the weight it is tied to."""
        name = f"{self.source}.weight"
        if self.quantization is None:
            self.packed = self.kernels.pack_linear(weights.read(name, self.shape, self.dtype))
        else:
            kept = read_quantized(weights, name, self.shape, self.quantization)
            self.packed = self.kernels.pack_quantized(kept, self.dtype)
        self.weight_bytes = self.packed.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """x [T, size] to logits float32 [T, vocab_size]."""
        return self.kernels.logits(x, self.packed)

    def choose(self, x: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The kernels' `choose` among the logits of x [T, size]: tokens int64 [T] and their logits."""
        return self.kernels.choose_product(x, self.packed, temperature, seeds, positions)
