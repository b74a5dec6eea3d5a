"""What every layer with weights has in common."""

import torch
from torch import nn

from ...ipc.messages.config import EngineConfig
from ...kernels.select import select_kernels
from ..dtypes import resolve_dtype
from ..weights import WeightReader


def join(prefix: str, name: str) -> str:
    """The checkpoint's name of a child."""
    return f"{prefix}.{name}" if prefix else name


class Layer(nn.Module):
    """A module with weights of its own, which `load` reads once by name. It computes nothing before that."""

    def __init__(self, *, config: EngineConfig, prefix: str = "") -> None:
        super().__init__()
        self.prefix = prefix
        self.kernels = select_kernels()
        self.dtype: torch.dtype = resolve_dtype(config)
        self.weight_bytes = 0
        self.modules_by_inputs: dict[str, int] = {}  # those of the checkpoint that are products, with their number of inputs

    def load(self, weights: WeightReader) -> None:
        """Read this layer's tensors; WeightError when they are not as expected."""
        raise NotImplementedError
