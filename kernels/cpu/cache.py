"""Writing the paged KV cache."""

from torch import Tensor


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Store k and v [T, Hk, D] at their slots [T]."""
    block_size = k_cache.shape[2]
    blocks, offsets = slots // block_size, slots % block_size
    k_cache[blocks, :, offsets] = k
    v_cache[blocks, :, offsets] = v
