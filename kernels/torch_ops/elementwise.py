"""Norms, rotation and gate, in as few torch operators as possible: at small batches their launch is their cost."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension."""
    return F.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual)."""
    total = x + residual
    return F.rms_norm(total, weight.shape, weight, eps), total


def rotary(heads: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate heads [T, H, D]; float32 inside, because cos_sin is."""
    half = heads.shape[-1] // 2
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    wide = heads.float()
    first, second = wide.chunk(2, dim=-1)
    rotated = torch.empty_like(wide, memory_format=torch.contiguous_format)
    torch.mul(first, cos, out=rotated[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=rotated[..., half:]).addcmul_(first, sin)
    return rotated.to(heads.dtype)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up [T, 2 * I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
