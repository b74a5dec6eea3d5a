"""Paged attention, plainly: one request after another, the softmax written out."""

import torch
from torch import Tensor
from torch import dtype as Dtype

from ..interface import AttentionBatch


def plan_attention(batch: AttentionBatch, *, num_kv_heads: int, head_dim: int, block_size: int, dtype: Dtype) -> AttentionBatch:
    """The batch itself: nothing is prepared."""
    return batch


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: AttentionBatch, scale: float) -> Tensor:
    """Causal attention of q [T, H, D] over the cache, computed in float32."""
    outputs, first = [], 0
    for blocks, start, count in zip(plan.block_table, plan.starts.tolist(), plan.counts.tolist(), strict=True):
        outputs.append(_attend(q[first : first + count].float(), k_cache, v_cache, blocks.tolist(), start, scale))
        first += count
    return torch.cat(outputs).to(q.dtype)


def _attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, blocks: list[int], start: int, scale: float) -> Tensor:
    count, num_heads, _ = q.shape
    end, block_size = start + count, k_cache.shape[2]
    used = blocks[: -(-end // block_size)]
    # [blocks, Hk, block_size, D] -> [Hk, end, D] -> one copy a query head
    groups = num_heads // k_cache.shape[1]
    keys, values = (
        cache[used].float().transpose(0, 1).flatten(1, 2)[:, :end].repeat_interleave(groups, dim=0)
        for cache in (k_cache, v_cache)
    )
    scores = torch.einsum("thd,hsd->hts", q, keys) * scale
    future = torch.arange(end)[None, :] > torch.arange(start, end)[:, None]
    weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    return torch.einsum("hts,hsd->thd", weights, values)
