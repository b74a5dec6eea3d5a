"""Rotary position embedding, plainly."""

import torch
from torch import Tensor


def rotary(heads: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate heads [T, H, D]; computed in float32."""
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)  # [T, 1, D / 2] each
    first, second = heads.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)
