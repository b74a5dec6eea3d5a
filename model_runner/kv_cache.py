"""The paged KV cache of one worker, and how large it may be."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..ipc.messages.config import CacheConfig, EngineConfig
from ..kernels.huge_pages import huge_zeros
from .memory import available_memory
from .models.llama_shape import LlamaShape

_MAX_DEFAULT_BYTES = 4 << 30


class KVCache:
    """Keys and values of all layers: for each, two tensors [num_blocks, num_kv_heads, block_size, head_dim]."""

    def __init__(self, shape: LlamaShape, *, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        # Zeros, not empty: a masked position still takes part in a product, where 0 * NaN would spread. These are pages
        # that the kernel gives on first touch; torch would write gigabytes at once.
        dimensions = (shape.num_layers, 2, num_blocks, shape.num_kv_heads, block_size, shape.head_dim)
        pages = huge_zeros(math.prod(dimensions) * dtype.itemsize)
        self._data = torch.from_numpy(pages).view(dtype).view(dimensions)
        self.layers: list[tuple[Tensor, Tensor]] = [(layer[0], layer[1]) for layer in self._data]
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = shape.num_kv_heads
        self.head_dim = shape.head_dim
        self.dtype = dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the whole cache."""
        return self._data.nbytes

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks, keys and values of all layers, from the first to the second of each pair, one pair after the other.

        Raises ValueError, before anything is copied, for a block that there is not.
        """
        for pair in pairs:
            if not all(0 <= block < self.num_blocks for block in pair):
                raise ValueError(f"cannot copy block {pair[0]} to {pair[1]}: the KV cache holds {self.num_blocks}")
        for source, target in pairs:
            self._data[:, :, target] = self._data[:, :, source]

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

    Never more than all rows at full length could fill, unless a size was asked for and the prefix cache can use the rest.
    Raises ValueError when a request of `max_model_len` tokens would not fit, or when the options ask for more than is free.
    With num_blocks_override nothing is checked: requests are refused one by one.
    """
    cache = config.cache
    if cache.num_blocks_override is not None:
        return cache.num_blocks_override
    size = bytes_per_block(shape, block_size=cache.block_size, dtype=dtype)
    free = available_memory()
    budget, source = _budget(cache, free)
    blocks = budget // size
    if blocks < -(-(max_model_len - 1) // cache.block_size):  # the last token is never computed
        raise ValueError(
            _too_small(cache, blocks, size, max_model_len=max_model_len, source=f"{source}; {free} bytes are free")
        )
    asked = cache.kv_cache_memory_bytes is not None or cache.kv_cache_memory_fraction is not None
    if not (asked and cache.enable_prefix_caching):
        blocks = min(blocks, config.scheduler.max_num_seqs * -(-max_model_len // cache.block_size))
    if blocks * size > free:
        raise ValueError(f"the KV cache would take {blocks * size} bytes ({source}), but only {free} bytes of memory are free")
    return blocks


def _budget(cache: CacheConfig, free: int) -> tuple[int, str]:
    """Bytes that the cache may take, and who says so."""
    wanted, fraction = cache.kv_cache_memory_bytes, cache.kv_cache_memory_fraction
    if wanted is not None and fraction is not None:
        raise ValueError(
            f"kv_cache_memory_bytes={wanted} and kv_cache_memory_fraction={fraction:g} both size the KV cache: give one of them"
        )
    if wanted is not None:
        return wanted, f"kv_cache_memory_bytes={wanted}"
    if fraction is not None:
        return int(free * fraction), f"kv_cache_memory_fraction={fraction:g}"
    return min(_MAX_DEFAULT_BYTES, free // 4), f"by default a quarter of the free memory, at most {_MAX_DEFAULT_BYTES} bytes"


def _too_small(cache: CacheConfig, blocks: int, size: int, *, max_model_len: int, source: str) -> str:
    """What is said when a request of `max_model_len` tokens needs more than `blocks` blocks of `size` bytes."""
    needed = -(-(max_model_len - 1) // cache.block_size)
    lower = f"lower max_model_len to at most {blocks * cache.block_size + 1}, or " if blocks else ""
    instead = "" if cache.kv_cache_memory_fraction is None else " instead of kv_cache_memory_fraction"
    return (
        f"max_model_len {max_model_len} needs {needed} blocks of {cache.block_size} tokens ({needed * size} bytes), "
        f"but the KV cache holds {blocks} ({source}): {lower}raise kv_cache_memory_bytes to at least {needed * size}{instead}"
    )
