"""The choice of tokens: Gumbel-max over filtered logits, the same for a request alone or in a batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.interface import KernelSet
from .filters import apply_filters, keeps_some


@dataclass(frozen=True)
class SamplingBatch:
    """Sampling parameters of S rows."""

    temperature: Tensor  # float32 [S], 0: greedy
    top_k: Tensor  # int64 [S], 0: off
    top_p: Tensor  # float32 [S], 1: off
    min_p: Tensor  # float32 [S], 0: off
    seeds: Tensor  # int64 [S]
    positions: Tensor  # int64 [S], index in the whole sequence of the token being drawn

    @property
    def all_greedy(self) -> bool:
        """Whether no row is drawn."""
        return not self.temperature.numpy().any()  # a torch operator costs ten times as much here

    @property
    def filtered(self) -> Tensor:
        """int64 [F], the rows that are drawn from some of their tokens only."""
        if self.all_greedy:
            return torch.empty(0, dtype=torch.int64)
        return torch.nonzero((self.temperature > 0) & keeps_some(self.top_k, self.top_p, self.min_p)).squeeze(-1)

    def select(self, rows: Tensor) -> "SamplingBatch":
        """The parameters of these rows."""
        return SamplingBatch(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


class Sampler:
    """Draws tokens with the noise of a kernel set. It has no state."""

    def __init__(self, kernels: KernelSet) -> None:
        self._kernels = kernels

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """One token a row, int64 [S], for logits [S, V] of any floating dtype, which stay as they are."""
        wide = logits.float()
        temperature = batch.temperature.clone()
        filtered = batch.filtered
        if filtered.numel():
            some = batch.select(filtered)
            scaled = wide[filtered] / temperature[filtered].unsqueeze(-1)
            apply_filters(scaled, top_k=some.top_k, top_p=some.top_p, min_p=some.min_p)
            wide = scaled if filtered.numel() == wide.shape[0] else wide.index_put((filtered,), scaled)
            temperature[filtered] = 1.0
        return self._kernels.choose(wide, temperature, batch.seeds, batch.positions)[0]
