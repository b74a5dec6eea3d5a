"""Matrix products with weights in panels; see csrc/gemm.h for their order."""

import torch
from torch import Tensor

from ..huge_pages import Arena
from ..interface import PackedWeight
from .library import FORMAT_BF16, FORMAT_F32, Weight, library

LANES = 16  # outputs of a panel
SPARE_ROWS = 32  # a tile of rows may be read whole

_ARENA = Arena()


def pack_linear(weight: Tensor) -> PackedWeight:
    """Copy weight [out, in], float32 or bfloat16, into panels."""
    outputs, inputs = weight.shape
    narrow = weight.dtype == torch.bfloat16
    depth = inputs + inputs % 2 if narrow else inputs
    count = -(-outputs // LANES) * LANES * depth
    data = torch.from_numpy(_ARENA.take(count * weight.dtype.itemsize)).view(weight.dtype)
    dense = weight.contiguous()
    library().ringpost_pack(dense.data_ptr(), FORMAT_BF16 if narrow else FORMAT_F32, outputs, inputs, data.data_ptr())
    return PackedWeight(data, outputs, inputs, data.nbytes)


def weight_struct(weight: PackedWeight, bias: Tensor | None = None) -> Weight:
    """What the library wants to know of a weight. It holds addresses: weight and bias, float32, must be kept alive."""
    form = FORMAT_BF16 if weight.data.dtype == torch.bfloat16 else FORMAT_F32
    return Weight(
        form, weight.out_features, weight.in_features, weight.data.data_ptr(), None if bias is None else bias.data_ptr()
    )


def logits(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [S, in] @ weight.T; float32 [S, out]."""
    return _products(x, weight, None)


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """x [T, in] @ weight.T + bias, in the dtype of x."""
    return _products(x, weight, None if bias is None else bias.float()).to(x.dtype)


def padded(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [T, in] as a product with the weight takes it: in its dtype, with rows behind the last that may be read."""
    rows = torch.empty((len(x) + SPARE_ROWS, weight.in_features), dtype=weight.data.dtype)
    rows[: len(x)] = x
    return rows


def _products(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    count = x.shape[0]
    rows = padded(x, weight)
    y = torch.empty((count, weight.out_features), dtype=torch.float32)
    library().ringpost_linear(
        weight_struct(weight, bias), rows.data_ptr(), rows.shape[1], count, rows.dtype == torch.bfloat16, y.data_ptr()
    )
    return y
