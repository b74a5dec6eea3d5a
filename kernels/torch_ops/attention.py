"""Paged attention on torch operators: decode rows in batches of like length, prefill chunks one by one.

The blocks a batch needs are copied into a dense [rows, Hk, length, D] and handed to the fused attention. Viewing the
cache as [num_blocks * Hk, block_size * D] makes that copy one index_select, whose index all layers share.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch import dtype as Dtype

from ..interface import AttentionBatch

_CALL_BLOCKS = 8  # a further fused call costs about as much as attending to this many padded blocks
_BATCH_BLOCKS = 128  # bound of one dense copy, for it to be read again from a cache and not from memory


@dataclass(frozen=True)
class _Decode:
    """Rows with one query each, padded to the longest of them."""

    queries: Tensor  # int64 [n], indices into the flat batch
    gather: Tensor  # int64 [n * Hk * blocks], rows of the viewed cache
    mask: Tensor  # [n, 1, 1, length], 0 or -inf


@dataclass(frozen=True)
class _Chunk:
    """One request with several consecutive queries."""

    first: int
    last: int
    gather: Tensor  # int64 [Hk * blocks]
    length: int
    mask: Tensor | None  # [queries, length]; None: plainly causal, as no position came before


@dataclass(frozen=True)
class AttentionPlan:
    """The calls of one step."""

    decodes: list[_Decode]
    chunks: list[_Chunk]


def plan_attention(batch: AttentionBatch, *, num_kv_heads: int, head_dim: int, block_size: int, dtype: Dtype) -> AttentionPlan:
    """Group the rows and compute gather indices and masks."""
    ends = batch.starts + batch.counts
    num_blocks = -(-ends // block_size)
    firsts = np.cumsum(batch.counts) - batch.counts
    table = batch.block_table.astype(np.int64)
    decodes = []
    rows = np.flatnonzero(batch.counts == 1)
    for group in _like_lengths(rows[np.argsort(-num_blocks[rows], kind="stable")], num_blocks):
        width = int(num_blocks[group[0]])
        # A row's padding repeats its own first block, so that no row ever reads another's values.
        used = np.arange(width) < num_blocks[group][:, None]
        blocks = np.where(used, table[group, :width], table[group, :1])
        padding = torch.from_numpy(np.arange(width * block_size) >= ends[group][:, None])
        mask = torch.zeros(padding.shape, dtype=dtype).masked_fill_(padding, float("-inf"))
        decodes.append(_Decode(torch.from_numpy(firsts[group]), _gather_index(blocks, num_kv_heads), mask[:, None, None]))
    chunks = []
    for r in np.flatnonzero(batch.counts > 1):
        start, end, first = int(batch.starts[r]), int(ends[r]), int(firsts[r])
        gather = _gather_index(table[r : r + 1, : num_blocks[r]], num_kv_heads)
        causal = None if start == 0 else _causal_mask(start, end, dtype)
        chunks.append(_Chunk(first, first + end - start, gather, end, causal))
    return AttentionPlan(decodes, chunks)


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Causal attention of q [T, H, D] over the cache."""
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    grouped = q.reshape(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    output = torch.empty_like(grouped)
    for decode in plan.decodes:
        # The query heads of a KV head take the place of query positions: its keys are then read once for all of them.
        n, groups = decode.queries.shape[0], grouped.shape[2]
        queries = grouped.index_select(0, decode.queries)
        keys, values = (_dense(cache, decode.gather, n) for cache in (k_cache, v_cache))
        mask = decode.mask.expand(n, 1, groups, keys.shape[2])
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
        output.index_copy_(0, decode.queries, attended)
    for chunk in plan.chunks:
        output[chunk.first : chunk.last] = _attend_chunk(grouped[chunk.first : chunk.last], k_cache, v_cache, chunk, scale)
    return output.reshape(q.shape)


def _attend_chunk(queries: Tensor, k_cache: Tensor, v_cache: Tensor, chunk: _Chunk, scale: float) -> Tensor:
    # The heads that share a KV head become the batch: keys and values expand over it without a copy.
    by_group = queries.permute(2, 1, 0, 3)  # [groups, Hk, queries, D]
    keys, values = (
        _dense(cache, chunk.gather, 1)[:, :, : chunk.length].expand(by_group.shape[0], -1, -1, -1)
        for cache in (k_cache, v_cache)
    )
    causal = chunk.mask is None
    attended = F.scaled_dot_product_attention(by_group, keys, values, attn_mask=chunk.mask, is_causal=causal, scale=scale)
    return attended.permute(2, 1, 0, 3)


def _dense(cache: Tensor, gather: Tensor, rows: int) -> Tensor:
    num_blocks, num_kv_heads, block_size, head_dim = cache.shape
    blocks = cache.view(num_blocks * num_kv_heads, block_size * head_dim).index_select(0, gather)
    return blocks.view(rows, num_kv_heads, -1, head_dim)


def _gather_index(blocks: npt.NDArray[np.int64], num_kv_heads: int) -> Tensor:
    """Block ids [n, width] to rows of the viewed cache, in the order n, Hk, width."""
    index = blocks[:, None, :] * num_kv_heads + np.arange(num_kv_heads)[:, None]
    return torch.from_numpy(index.reshape(-1))


def _like_lengths(rows: npt.NDArray[np.int64], num_blocks: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Cut rows, longest first, into groups: a new one when padding would cost more than another call."""
    groups: list[npt.NDArray[np.int64]] = []
    begin = waste = 0
    widths: list[int] = num_blocks[rows].tolist()
    for i, width in enumerate(widths):
        waste += widths[begin] - width
        if waste > _CALL_BLOCKS or (i - begin + 1) * widths[begin] > max(_BATCH_BLOCKS, widths[begin]):
            groups.append(rows[begin:i])
            begin, waste = i, 0
    if begin < len(widths):
        groups.append(rows[begin:])
    return groups


def _causal_mask(start: int, end: int, dtype: Dtype) -> Tensor:
    future = torch.arange(end)[None, :] > torch.arange(start, end)[:, None]
    return torch.zeros(future.shape, dtype=dtype).masked_fill_(future, float("-inf"))
