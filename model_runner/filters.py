"""Filters on scaled logits: min-p, top-k and top-p, as minus infinity where a token is out.

All keep every token that ties with the last one kept, so that nothing depends on the order of a sort.
"""

from typing import overload

import torch
from torch import Tensor

_OUT = float("-inf")
_FIRST_HEAD = 256
_HEAD_GROWTH = 16


@overload
def keeps_some(top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor: ...
@overload
def keeps_some(top_k: int, top_p: float, min_p: float) -> bool: ...
def keeps_some(top_k: Tensor | int, top_p: Tensor | float, min_p: Tensor | float) -> Tensor | bool:
    """Whether `apply_filters` may take a token out, for one row or bool [R] for tensors [R]."""
    return (top_k > 0) | (top_p < 1) | (min_p > 0)


def apply_filters(scaled: Tensor, *, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
    """Mask scaled float32 [R, V] in place, in the order min-p, top-k, top-p.

    top_k int64 [R], 0: off. top_p float32 [R], 1: off. min_p float32 [R], 0: off.
    """
    if bool((min_p > 0).any()):
        # A probability relative to the best is a difference of logits.
        floor = scaled.amax(dim=-1, keepdim=True) + min_p.log().unsqueeze(-1)
        scaled.masked_fill_(scaled < floor, _OUT)
    rows = torch.nonzero((top_k > 0) & (top_k < scaled.shape[1])).squeeze(-1)
    if rows.numel():
        _raise_floor(scaled, rows, _top_k_floor(scaled[rows], top_k[rows]))
    rows = torch.nonzero(top_p < 1).squeeze(-1)
    if rows.numel():
        _raise_floor(scaled, rows, _top_p_floor(scaled[rows], top_p[rows]))


def _raise_floor(scaled: Tensor, rows: Tensor, floor: Tensor) -> None:
    kept = scaled[rows]
    scaled[rows] = kept.masked_fill(kept < floor, _OUT)


def _top_k_floor(scaled: Tensor, top_k: Tensor) -> Tensor:
    """The k-th largest of each row [R, 1]."""
    return scaled.topk(int(top_k.max()), dim=-1).values.gather(1, top_k.unsqueeze(-1) - 1)


def _top_p_floor(scaled: Tensor, top_p: Tensor) -> Tensor:
    """The smallest of the fewest largest of each row whose probabilities reach top_p [R, 1].

    A full sort of a vocabulary is slow and rarely needed: look at the largest few first, then at more.
    """
    best = scaled.amax(dim=-1, keepdim=True)
    # Summed in float64, so that the result does not depend on how the rows were split among threads.
    wanted = top_p.double().unsqueeze(-1) * (scaled - best).exp_().sum(dim=-1, keepdim=True, dtype=torch.float64)
    vocab_size = scaled.shape[1]
    head = min(_FIRST_HEAD, vocab_size)
    while True:
        largest = scaled.topk(head, dim=-1).values
        reached = (largest - best).exp_().cumsum(dim=-1, dtype=torch.float64) >= wanted
        if head == vocab_size or bool(reached[:, -1].all()):
            # Rounding may keep even the whole vocabulary short of it: then nothing is cut.
            last = torch.where(reached.any(dim=-1), reached.to(torch.uint8).argmax(dim=-1), head - 1)
            return largest.gather(1, last.unsqueeze(-1))
        head = min(head * _HEAD_GROWTH, vocab_size)
