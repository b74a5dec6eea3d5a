"""Matrix products with weights in panels; see csrc/gemm.h for their order."""

from functools import cached_property

import torch
from torch import Tensor

from ..huge_pages import Arena
from ..interface import PackedWeight
from ..quantized import QuantizedWeight, quantize
from .library import FORMAT_BF16, FORMAT_F32, FORMAT_Q4, FORMAT_Q8, Weight, library

LANES = 16  # outputs of a panel
_QUANTIZED = {"int8": FORMAT_Q8, "int4": FORMAT_Q4}

_ARENA = Arena()


class PanelWeight(PackedWeight):
    """A weight in panels."""

    @cached_property
    def struct(self) -> Weight:
        """What the library wants to know of it, without a bias."""
        return weight_struct(self)


def pack_linear(weight: Tensor, quantization: str | None = None) -> PanelWeight:
    """Copy weight [out, in], float32 or bfloat16, into panels, or quantise it into some."""
    if quantization is not None:
        return pack_quantized(quantize(weight, quantization), weight.dtype)
    outputs, inputs = weight.shape
    narrow = weight.dtype == torch.bfloat16
    depth = inputs + inputs % 2 if narrow else inputs
    count = -(-outputs // LANES) * LANES * depth
    data = torch.from_numpy(_ARENA.take(count * weight.dtype.itemsize)).view(weight.dtype)
    dense = weight.contiguous()
    library().ringpost_pack(dense.data_ptr(), FORMAT_BF16 if narrow else FORMAT_F32, outputs, inputs, data.data_ptr())
    return PanelWeight(data, outputs, inputs, data.nbytes)


def pack_quantized(weight: QuantizedWeight, dtype: torch.dtype) -> PanelWeight:
    """Copy it into panels, which serve activations of any dtype: products round them to eight bits."""
    del dtype
    outputs, inputs = weight.values.shape
    form, lib = _QUANTIZED[weight.quantization], library()
    data = torch.from_numpy(_ARENA.take(lib.ringpost_quantised_bytes(form, outputs, inputs)))
    values, scales = weight.values.contiguous(), weight.scales.contiguous()
    minima = None if weight.minima is None else weight.minima.contiguous()
    lib.ringpost_pack_quantised(
        values.data_ptr(),
        scales.data_ptr(),
        None if minima is None else minima.data_ptr(),
        form,
        outputs,
        inputs,
        data.data_ptr(),
    )
    return PanelWeight(data, outputs, inputs, data.nbytes, weight.quantization)


def weight_struct(weight: PackedWeight, bias: Tensor | None = None) -> Weight:
    """What the library wants to know of a weight. It holds addresses: weight and bias, float32, must be kept alive."""
    if weight.quantization is not None:
        form = _QUANTIZED[weight.quantization]
    else:
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


def rows_for(x: Tensor, weight: PackedWeight) -> Tensor:
    """x [T, in] as a product with the weight takes it: contiguous, and for a dense one in its dtype."""
    return (x if weight.quantization is not None else x.to(weight.data.dtype)).contiguous()


def _products(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    rows = rows_for(x, weight)
    y = torch.empty((len(x), weight.out_features), dtype=torch.float32)
    done = library().ringpost_linear(
        weight_struct(weight, bias), rows.data_ptr(), rows.shape[1], len(x), rows.dtype == torch.bfloat16, y.data_ptr()
    )
    if not done:
        raise MemoryError(f"no memory for the activations of {len(x)} tokens")
    return y
