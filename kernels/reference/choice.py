"""The choice of tokens, plainly."""

import torch
from torch import Tensor

from .noise import gumbel_noise


def choose(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """The index of the largest logit, or of the largest logit / temperature + noise where the temperature is not 0."""
    drawn = temperature > 0
    scaled = logits / torch.where(drawn, temperature, 1.0).unsqueeze(-1)
    noise = gumbel_noise(seeds, positions, logits.shape[1])
    return torch.where(drawn.unsqueeze(-1), scaled + noise, logits).argmax(dim=-1)
