"""Quantised weights: what the numbers mean, and how a matrix becomes them. Each kernel set packs them in a form of its own.

Inputs form groups of GROUP, and each output has a scale for each group.
int8: weight = scale * value, with values -127 .. 127. int4: weight = scale * value + minimum, with values 0 .. 15.
Scales and minima are float16. These are also the numbers of GGUF's Q8_0 and Q4_1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32
QUANTIZATIONS = ("int8", "int4")
_SLICE = 1 << 22  # weights quantised at a time, so that a large matrix needs no float32 copy of itself


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix [out, in]; `in` is a multiple of GROUP."""

    quantization: str  # one of QUANTIZATIONS
    values: Tensor  # [out, in], int8 or, for int4, uint8 with a value in each byte
    scales: Tensor  # float16 [out, in / GROUP]
    minima: Tensor | None  # the same shape; only for int4


def quantize(weight: Tensor, quantization: str) -> QuantizedWeight:
    """The nearest values for weight [out, in], with scales that reach each group's extremes. ValueError for what cannot be."""
    outputs, inputs = weight.shape
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization must be {' or '.join(QUANTIZATIONS)}, got {quantization!r}")
    if inputs % GROUP:
        raise ValueError(f"inputs of quantised weights must be a multiple of {GROUP}, got {inputs}")
    step = max(1, _SLICE // max(1, inputs))
    slices = (
        [_quantize(part, quantization) for part in torch.split(weight, step)] if outputs else [_quantize(weight, quantization)]
    )
    quantized = concatenate(slices)
    check_finite(quantized)
    return quantized


def check_finite(weight: QuantizedWeight) -> None:
    """Raise ValueError for weights that are no numbers, or larger than a scale can say."""
    if not (weight.scales.isfinite().all() and (weight.minima is None or weight.minima.isfinite().all())):
        raise ValueError(f"weights cannot be quantised to {weight.quantization}: some are not finite, or too large for it")


def _quantize(weight: Tensor, quantization: str) -> QuantizedWeight:
    groups = _groups(weight.float())
    if quantization == "int8":
        scales = (groups.abs().amax(-1) / 127).half()
        return QuantizedWeight("int8", _nearest(groups, scales, -127, 127).to(torch.int8), scales, None)
    low, high = groups.aminmax(dim=-1)
    scales, minima = ((high - low) / 15).half(), low.half()
    values = _nearest(groups - minima.float().unsqueeze(-1), scales, 0, 15).to(torch.uint8)
    return QuantizedWeight("int4", values, scales, minima)


def _nearest(groups: Tensor, scales: Tensor, least: int, most: int) -> Tensor:
    """Groups in units of their scale, as it is stored; zeros where that is zero."""
    wide = scales.float().unsqueeze(-1)
    return torch.where(wide == 0, 0.0, groups / wide).round_().clamp_(least, most).flatten(1)


def _groups(weight: Tensor) -> Tensor:
    """[out, in / GROUP, GROUP]."""
    return weight.reshape(weight.shape[0], weight.shape[1] // GROUP, GROUP)


def dequantize(weight: QuantizedWeight) -> Tensor:
    """The matrix that these numbers mean, in float32."""
    groups = _groups(weight.values.float()) * weight.scales.float().unsqueeze(-1)
    if weight.minima is not None:
        groups += weight.minima.float().unsqueeze(-1)
    return groups.flatten(1)


def concatenate(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Matrices with the same inputs, of the same quantisation, below one another."""
    if len(parts) == 1:
        return parts[0]
    minima = [part.minima for part in parts if part.minima is not None]
    return QuantizedWeight(
        parts[0].quantization,
        torch.cat([part.values for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(minima) if minima else None,
    )
