"""Matrix products, plainly."""

import torch.nn.functional as F
from torch import Tensor

from ..interface import PackedWeight


def pack_linear(weight: Tensor) -> PackedWeight:
    """Keep the weight as it is."""
    out_features, in_features = weight.shape
    return PackedWeight(weight, out_features, in_features, weight.nbytes)


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias."""
    return F.linear(x, weight.data, bias)


def logits(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [S, in] @ weight.T in float32."""
    return F.linear(x.float(), weight.data.float())
