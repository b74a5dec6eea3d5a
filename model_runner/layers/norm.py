"""RMSNorm."""

from torch import Tensor

from ...ipc.messages.config import EngineConfig
from ..weights import WeightReader
from .base import Layer


class RMSNorm(Layer):
    """Root-mean-square norm, alone or behind a residual sum."""

    weight: Tensor

    def __init__(self, *, config: EngineConfig, prefix: str = "", size: int, eps: float) -> None:
        super().__init__(config=config, prefix=prefix)
        self.size = size
        self.eps = eps

    def load(self, weights: WeightReader) -> None:
        """Read `PREFIX.weight`."""
        self.weight = weights.read(f"{self.prefix}.weight", (self.size,), self.dtype)
        self.weight_bytes = self.weight.nbytes

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(norm of the sum, the sum) of x and residual [T, size]; without a residual the sum is x."""
        if residual is None:
            return self.kernels.rms_norm(x, self.weight, self.eps), x
        return self.kernels.add_rms_norm(x, residual, self.weight, self.eps)
