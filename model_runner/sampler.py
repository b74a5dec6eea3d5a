"""The choice of tokens: Gumbel-max over filtered logits, the same for a request alone or in a batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..ipc.messages.sampling import LOWEST_TEMPERATURE
from ..kernels.interface import KernelSet
from .filters import apply_filters

# The noise spans -2.82 to 17.33, so a token further below the best can never win.
_REACH = 20.2
# A token drawn alone costs the hash of its three neighbours too.
_SPARSE_BELOW = 0.25


@dataclass(frozen=True)
class SamplingBatch:
    """Sampling parameters of S rows."""

    greedy: Tensor  # bool [S]
    temperature: Tensor  # float32 [S]
    top_k: Tensor  # int64 [S], 0: off
    top_p: Tensor  # float32 [S], 1: off
    min_p: Tensor  # float32 [S], 0: off
    seeds: Tensor  # int64 [S]
    positions: Tensor  # int64 [S], index in the whole sequence of the token being drawn

    def select(self, rows: Tensor) -> "SamplingBatch":
        """The parameters of these rows."""
        return SamplingBatch(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


class Sampler:
    """Draws tokens with the noise of a kernel set. It has no state."""

    def __init__(self, kernels: KernelSet) -> None:
        self._kernels = kernels

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """One token a row, int64 [S], for logits [S, V] of any floating dtype."""
        if bool(batch.greedy.all()):
            return logits.float().argmax(dim=-1)
        if not bool(batch.greedy.any()):
            return self._draw(logits, batch)
        tokens = torch.empty(logits.shape[0], dtype=torch.int64)
        greedy, drawn = torch.nonzero(batch.greedy).squeeze(-1), torch.nonzero(~batch.greedy).squeeze(-1)
        tokens[greedy] = logits[greedy].float().argmax(dim=-1)
        tokens[drawn] = self._draw(logits[drawn], batch.select(drawn))
        return tokens

    def _draw(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        scaled = logits.float() / batch.temperature.clamp(min=LOWEST_TEMPERATURE).unsqueeze(-1)
        apply_filters(scaled, top_k=batch.top_k, top_p=batch.top_p, min_p=batch.min_p)
        # Written so that a NaN stays possible: it then wins, and the caller sees it.
        possible = ~(scaled < scaled.amax(dim=-1, keepdim=True) - _REACH)
        sparse = possible.sum(dim=-1) < _SPARSE_BELOW * scaled.shape[1]
        tokens = torch.empty(scaled.shape[0], dtype=torch.int64)
        for rows, choose in ((sparse, self._choose_sparse), (~sparse, self._choose_dense)):
            picked = torch.nonzero(rows).squeeze(-1)
            if picked.numel():
                tokens[picked] = choose(scaled[picked], possible[picked], batch.seeds[picked], batch.positions[picked])
        return tokens

    def _choose_dense(self, scaled: Tensor, possible: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
        return scaled.add_(self._kernels.gumbel_noise(seeds, positions, scaled.shape[1])).argmax(dim=-1)

    def _choose_sparse(self, scaled: Tensor, possible: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
        rows, tokens = torch.nonzero(possible, as_tuple=True)
        noisy = scaled[rows, tokens] + self._kernels.gumbel_noise_at(seeds[rows], positions[rows], tokens)
        return torch.full_like(scaled, float("-inf")).index_put_((rows, tokens), noisy).argmax(dim=-1)
