"""The paged KV cache of one worker, and how large it may be."""

import math

import numpy as np
import torch
from torch import Tensor

from ..ipc.messages.config import EngineConfig
from .memory import available_memory
from .models.llama_shape import LlamaShape

_MAX_DEFAULT_BYTES = 4 << 30


class KVCache:
    """Keys and values of all layers: for each, two tensors [num_blocks, num_kv_heads, block_size, head_dim]."""

    def __init__(self, shape: LlamaShape, *, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        # Zeros, not empty: a masked position still takes part in a product, where 0 * NaN would spread. numpy's zeros
        # are pages the kernel gives on first touch; torch would write gigabytes at once.
        dimensions = (shape.num_layers, 2, num_blocks, shape.num_kv_heads, block_size, shape.head_dim)
        pages = np.zeros(math.prod(dimensions) * dtype.itemsize, dtype=np.uint8)
        self._data = torch.from_numpy(pages).view(dtype).view(dimensions)
        self.layers: list[tuple[Tensor, Tensor]] = [(layer[0], layer[1]) for layer in self._data]
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = shape.num_kv_heads
        self.dtype = dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the whole cache."""
        return self._data.nbytes

    def scrub(self, blocks: list[int]) -> None:
        """Replace what is not finite in these blocks by zero, lest it reach a request that gets them later."""
        for keys, values in self.layers:
            for cache in (keys, values):
                cache[blocks] = torch.nan_to_num(cache[blocks], nan=0.0, posinf=0.0, neginf=0.0)


def bytes_per_block(shape: LlamaShape, *, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers."""
    return 2 * shape.num_layers * shape.num_kv_heads * block_size * shape.head_dim * dtype.itemsize


def max_blocks(config: EngineConfig, shape: LlamaShape, *, max_model_len: int, dtype: torch.dtype) -> int:
    """How many blocks the options or, without any, the free memory allow.

    Memory alone never yields more than all rows at full length could fill. Raises ValueError when not one block fits, or
    when the options ask for more than is free.
    """
    cache = config.cache
    if cache.num_blocks_override is not None:
        return cache.num_blocks_override
    size = bytes_per_block(shape, block_size=cache.block_size, dtype=dtype)
    free = available_memory()
    if cache.kv_cache_memory_bytes is not None:
        budget, source = cache.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    else:
        budget, source = min(_MAX_DEFAULT_BYTES, free // 4), "a quarter of the free memory"
    if budget < size:
        raise ValueError(
            f"the KV cache may take {budget} bytes ({source}), but one block of {cache.block_size} tokens takes {size}"
        )
    blocks = min(budget // size, config.scheduler.max_num_seqs * -(-max_model_len // cache.block_size))
    if blocks * size > free:
        raise ValueError(
            f"the KV cache would take {blocks * size} bytes ({source}={budget}), but only {free} bytes of memory are free"
        )
    return blocks
