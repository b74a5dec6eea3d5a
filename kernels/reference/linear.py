"""Matrix products, plainly."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..interface import PackedWeight
from ..quantized import QuantizedWeight, dequantize, quantize


def pack_linear(weight: Tensor, quantization: str | None = None) -> PackedWeight:
    """Keep the weight as it is, or what is left of it when it has been quantised."""
    if quantization is not None:
        return pack_quantized(quantize(weight, quantization), weight.dtype)
    out_features, in_features = weight.shape
    return PackedWeight(weight, out_features, in_features, weight.nbytes)


def pack_quantized(weight: QuantizedWeight, dtype: torch.dtype) -> PackedWeight:
    """Its values in float32."""
    dense = dequantize(weight)
    out_features, in_features = dense.shape
    return PackedWeight(dense, out_features, in_features, dense.nbytes, weight.quantization)


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias."""
    if weight.quantization is not None:
        return F.linear(x.float(), weight.data, None if bias is None else bias.float()).to(x.dtype)
    return F.linear(x, weight.data, bias)


def logits(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [S, in] @ weight.T in float32."""
    return F.linear(x.float(), weight.data.float())
