"""Matrix products by oneDNN, with weights reordered once into its blocked layout.

A plain product reorders the weight at every call. On a CPU without bfloat16 instructions oneDNN emulates them, many
times slower than float32, so there bfloat16 weights are packed as float32 and only the activations stay narrow.
There is nothing for quantised weights: they are computed as dense ones, and take as much memory.
"""

import torch
from torch import Tensor

from ..interface import PackedWeight
from ..quantized import QuantizedWeight, dequantize, quantize

# oneDNN picks the layout for a number of rows; the one it picks for a decode batch is good from 1 row to thousands.
_ROWS_HINT = 128


def bf16_is_fast() -> bool:
    """Whether this CPU has instructions for bfloat16 products."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linear(weight: Tensor, quantization: str | None = None) -> PackedWeight:
    """Reorder weight [out, in]; float32 stays, bfloat16 is widened where the CPU is slow at it."""
    if quantization is not None:
        return pack_quantized(quantize(weight, quantization), weight.dtype)
    if weight.dtype == torch.bfloat16 and not bf16_is_fast():
        weight = weight.float()
    out_features, in_features = weight.shape
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
    return PackedWeight(packed, out_features, in_features, weight.nbytes)


def pack_quantized(weight: QuantizedWeight, dtype: torch.dtype) -> PackedWeight:
    """What it means, rounded to dtype."""
    return pack_linear(dequantize(weight).to(dtype))


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, in the dtype the weight was packed in; the result has that of x."""
    wide = x.to(weight.data.dtype)
    if bias is not None:
        bias = bias.to(wide.dtype)
    y: Tensor = torch.ops.mkldnn._linear_pointwise(wide, weight.data, bias, "none", [], "")
    return y.to(x.dtype)


def logits(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [S, in] @ weight.T as float32."""
    return linear(x, weight, None).float()
