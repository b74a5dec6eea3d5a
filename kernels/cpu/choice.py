"""The choice of tokens in C."""

import torch
from torch import Tensor

from .library import library


def choose(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """The index of the largest logit, or of the largest logit / temperature + noise where the temperature is not 0."""
    count, vocab_size = logits.shape
    tokens = torch.empty(count, dtype=torch.int64)
    rows = logits.contiguous()
    done = library().ringpost_choose(
        rows.data_ptr(),
        count,
        vocab_size,
        temperature.data_ptr(),
        seeds.data_ptr(),
        positions.data_ptr(),
        tokens.data_ptr(),
    )
    if not done:
        raise MemoryError(f"no memory to choose {count} tokens")
    return tokens
