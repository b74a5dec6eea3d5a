"""The choice of tokens on torch operators: noise is made only for tokens that could win by it."""

import torch
from torch import Tensor

from ..interface import PackedWeight
from ..reference.noise import gumbel_noise, gumbel_noise_at
from .linear import logits as logits_of

# The noise spans -2.82 to 17.33, so a token further below the best can never win.
_REACH = 20.2
# A token drawn alone costs the hash of its three neighbours too.
_SPARSE_BELOW = 0.25


def choose(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The index of the largest logit, or of the largest logit / temperature + noise where that is not 0; and its logit."""
    drawn = temperature > 0
    tokens = torch.empty(logits.shape[0], dtype=torch.int64)
    rows, others = torch.nonzero(drawn).squeeze(-1), torch.nonzero(~drawn).squeeze(-1)
    if others.numel():
        tokens[others] = logits[others].argmax(dim=-1)
    if rows.numel():
        tokens[rows] = _draw(logits[rows] / temperature[rows].unsqueeze(-1), seeds[rows], positions[rows])
    return tokens, logits.gather(1, tokens.unsqueeze(-1)).squeeze(-1)


def choose_product(
    x: Tensor, weight: PackedWeight, temperature: Tensor, seeds: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """The choice among the products with each row of x."""
    return choose(logits_of(x, weight), temperature, seeds, positions)


def _draw(scaled: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    # Written so that a NaN stays possible: it then wins, and the caller sees it.
    possible = ~(scaled < scaled.amax(dim=-1, keepdim=True) - _REACH)
    sparse = possible.sum(dim=-1) < _SPARSE_BELOW * scaled.shape[1]
    tokens = torch.empty(scaled.shape[0], dtype=torch.int64)
    for chosen, choose_from in ((sparse, _choose_sparse), (~sparse, _choose_dense)):
        rows = torch.nonzero(chosen).squeeze(-1)
        if rows.numel():
            tokens[rows] = choose_from(scaled[rows], possible[rows], seeds[rows], positions[rows])
    return tokens


def _choose_dense(scaled: Tensor, possible: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    return scaled.add_(gumbel_noise(seeds, positions, scaled.shape[1])).argmax(dim=-1)


def _choose_sparse(scaled: Tensor, possible: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    rows, tokens = torch.nonzero(possible, as_tuple=True)
    noisy = scaled[rows, tokens] + gumbel_noise_at(seeds[rows], positions[rows], tokens)
    return torch.full_like(scaled, float("-inf")).index_put_((rows, tokens), noisy).argmax(dim=-1)
