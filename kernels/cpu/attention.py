"""Paged attention in C, for the sizes that it is made for; torch operators for others.

Which of the two it is depends on the cache alone, so that what writes it and what reads it agree on the order inside a block.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch import dtype as Dtype

from ..interface import AttentionBatch
from ..reference import cache as plain_cache
from ..torch_ops import attention as torch_attention
from .library import Batch, Heads, library
from .linear import LANES

MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class BatchPlan:
    """A batch as the library reads it, with the arrays that it points to."""

    struct: Batch
    batch: AttentionBatch
    table: npt.NDArray[np.int32]


def fits(*, head_dim: int, block_size: int) -> bool:
    """Whether the C kernels can work with a cache of these sizes."""
    return head_dim % LANES == 0 and head_dim <= MAX_HEAD_DIM and block_size % LANES == 0


def heads_struct(num_heads: int, k_cache: Tensor) -> Heads:
    """The sizes of heads over a cache [num_blocks, num_kv_heads, block_size, head_dim]."""
    _, kv_heads, block_size, head_dim = k_cache.shape
    return Heads(num_heads, kv_heads, head_dim, block_size, k_cache.dtype == torch.bfloat16)


def plan_attention(
    batch: AttentionBatch, *, num_kv_heads: int, head_dim: int, block_size: int, dtype: Dtype
) -> BatchPlan | torch_attention.AttentionPlan:
    """The batch as the library reads it; its arrays must be contiguous but for the table."""
    if not fits(head_dim=head_dim, block_size=block_size):
        return torch_attention.plan_attention(
            batch, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype
        )
    table = np.ascontiguousarray(batch.block_table, dtype=np.int32)
    struct = Batch(len(table), batch.starts.ctypes.data, batch.counts.ctypes.data, table.ctypes.data, table.shape[1])
    return BatchPlan(struct, batch, table)


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Store k and v [T, Hk, D] at their slots [T], in the order in which `paged_attention` reads them."""
    _, _, block_size, head_dim = k_cache.shape
    if not fits(head_dim=head_dim, block_size=block_size):
        plain_cache.write_kv(k, v, k_cache, v_cache, slots)
        return
    keys, values = k.float().contiguous(), v.float().contiguous()
    library().ringpost_write_kv(
        heads_struct(k.shape[1], k_cache),
        keys.data_ptr(),
        values.data_ptr(),
        slots.data_ptr(),
        len(slots),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
    )


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: BatchPlan | torch_attention.AttentionPlan, scale: float
) -> Tensor:
    """Causal attention of q [T, H, D] over the cache."""
    if isinstance(plan, torch_attention.AttentionPlan):
        return torch_attention.paged_attention(q, k_cache, v_cache, plan, scale)
    queries = q.float().contiguous()
    out = torch.empty(q.shape, dtype=k_cache.dtype)
    done = library().ringpost_attend(
        heads_struct(q.shape[1], k_cache),
        plan.struct,
        queries.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        scale,
        out.data_ptr(),
    )
    if not done:
        raise MemoryError("no memory for attention")
    return out.to(q.dtype)
