"""The choice of tokens in C."""

import torch
from torch import Tensor

from ..interface import PackedWeight
from .library import library
from .linear import PanelWeight, rows_for


def choose(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The index of the largest logit, or of the largest logit / temperature + noise where that is not 0; and its logit."""
    count, vocab_size = logits.shape
    tokens, chosen = _results(count)
    rows = logits.contiguous()
    done = library().ringpost_choose(
        rows.data_ptr(),
        count,
        vocab_size,
        temperature.data_ptr(),
        seeds.data_ptr(),
        positions.data_ptr(),
        tokens.data_ptr(),
        chosen.data_ptr(),
    )
    return _checked(done, tokens, chosen)


def choose_product(
    x: Tensor, weight: PackedWeight, temperature: Tensor, seeds: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """The choice among the products with each row of x, none of which is kept."""
    assert isinstance(weight, PanelWeight), "weights come from this set's pack_linear or pack_quantized"
    tokens, chosen = _results(len(x))
    rows = rows_for(x, weight)
    done = library().ringpost_choose_product(
        weight.struct,
        rows.data_ptr(),
        rows.shape[1],
        len(x),
        rows.dtype == torch.bfloat16,
        temperature.data_ptr(),
        seeds.data_ptr(),
        positions.data_ptr(),
        tokens.data_ptr(),
        chosen.data_ptr(),
    )
    return _checked(done, tokens, chosen)


def _results(count: int) -> tuple[Tensor, Tensor]:
    return torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=torch.float32)


def _checked(done: int, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    if not done:
        raise MemoryError(f"no memory to choose {len(tokens)} tokens")
    return tokens, chosen
