"""Tables of the rotary embedding."""

import math

import torch
from torch import Tensor

from ..models.rope_shape import RopeShape


def rotary_table(rope: RopeShape, *, head_dim: int, max_position: int) -> Tensor:
    """float32 [max_position, head_dim]: the cosines of the angles of each position, then the sines."""
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32), inverse_frequencies(rope, head_dim))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def inverse_frequencies(rope: RopeShape, head_dim: int) -> Tensor:
    """float32 [head_dim / 2]: angle a position, for each rotated pair."""
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.kind == "linear":
        return plain / rope.factor
    return _llama3(rope, plain) if rope.kind == "llama3" else plain


def _llama3(rope: RopeShape, plain: Tensor) -> Tensor:
    """Slow rotations are stretched by the factor, fast ones kept, those between blended by how often they turn."""
    turns = rope.original_max_position * plain / (2 * math.pi)  # over the length the model was first trained on
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0.0, 1.0)
    return kept * plain + (1.0 - kept) * plain / rope.factor
