"""The choice of tokens, plainly."""

import torch
from torch import Tensor

from ..interface import PackedWeight
from .linear import logits as logits_of
from .noise import gumbel_noise


def choose(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The index of the largest logit, or of the largest logit / temperature + noise where that is not 0; and its logit."""
    drawn = temperature > 0
    scaled = logits / torch.where(drawn, temperature, 1.0).unsqueeze(-1)
    noise = gumbel_noise(seeds, positions, logits.shape[1])
    tokens = torch.where(drawn.unsqueeze(-1), scaled + noise, logits).argmax(dim=-1)
    return tokens, logits.gather(1, tokens.unsqueeze(-1)).squeeze(-1)


def choose_product(
    x: Tensor, weight: PackedWeight, temperature: Tensor, seeds: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """The choice among the products with each row of x."""
    return choose(logits_of(x, weight), temperature, seeds, positions)
