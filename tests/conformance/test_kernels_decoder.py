"""A decoder in one call: against torch, and whichever rows are wanted."""

import os

# Triton decides whether it interprets when it is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu

from ringpost.kernels.interface import AttentionBatch, DecoderLayerWeights, DecoderWeights
from ringpost.kernels.select import select_kernels

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB, BLOCK, EPS = 96, 3, 1, 32, 80, 50, 16, 1e-5
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
DTYPES = (torch.float32, torch.bfloat16)


class Decoder:
    """A decoder of the C kernels with a cache for one request. Its numbers are always the same."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.kernels = select_kernels("cpu")
        self.dtype = dtype
        generator = torch.Generator().manual_seed(5)

        def normal(*shape: int) -> Tensor:
            return (torch.randn(shape, generator=generator) * 0.1).to(dtype)

        self.dense = [
            (normal(QKV, HIDDEN), normal(HIDDEN, HIDDEN), normal(2 * INNER, HIDDEN), normal(HIDDEN, INNER)) for _ in range(2)
        ]
        self.embedding = normal(VOCAB, HIDDEN)
        angles = torch.arange(256)[:, None] * torch.rand(1, HEAD_DIM // 2, generator=generator)
        self.cos, self.sin = angles.cos(), angles.sin()
        ones, pack = torch.ones(HIDDEN), self.kernels.pack_linear
        layers = [
            DecoderLayerWeights(ones, pack(qkv), None, pack(out), None, ones, pack(gate_up), None, pack(down), None)
            for qkv, out, gate_up, down in self.dense
        ]
        cos_sin = torch.cat([self.cos, self.sin], 1)
        weights = DecoderWeights(self.embedding, layers, ones, cos_sin, HEADS, KV_HEADS, HEAD_DIM, EPS, HEAD_DIM**-0.5, dtype)
        fused = self.kernels.fuse_decoder(weights, block_size=BLOCK)
        assert fused is not None
        self.fused = fused
        cache = torch.zeros(len(layers), 2, 16, KV_HEADS, BLOCK, HEAD_DIM, dtype=dtype)
        self.caches = [(layer[0], layer[1]) for layer in cache]

    def __call__(self, count: int, wanted: Tensor | None) -> Tensor:
        """Hidden states of a prompt of `count` tokens."""
        blocks = np.arange(-(-count // BLOCK), dtype=np.int32)[None]
        batch = AttentionBatch(blocks, np.zeros(1, np.int64), np.array([count], np.int64))
        plan = self.kernels.plan_attention(batch, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=BLOCK, dtype=self.dtype)
        places = torch.arange(count)
        return self.fused(places * 7 % VOCAB, places, places.clone(), plan, self.caches, wanted)

    def plainly(self, count: int) -> Tensor:
        """The same in torch, in float32."""

        def norm(x: Tensor) -> Tensor:
            return x / (x.square().mean(1, keepdim=True) + EPS).sqrt()

        def rotated(heads: Tensor) -> Tensor:
            first, second = heads.chunk(2, 2)
            cos, sin = self.cos[:count, None], self.sin[:count, None]
            return torch.cat([first * cos - second * sin, second * cos + first * sin], 2)

        x = self.embedding[torch.arange(count) * 7 % VOCAB].float()
        for qkv, out, gate_up, down in [[weight.float() for weight in layer] for layer in self.dense]:
            heads = (norm(x) @ qkv.T).view(count, -1, HEAD_DIM)
            q, k, v = heads[:, :HEADS], heads[:, HEADS:-KV_HEADS], heads[:, -KV_HEADS:]
            q, k, v = (part.transpose(0, 1) for part in (rotated(q), rotated(k), v))
            attended = scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q), is_causal=True)
            x = x + attended.transpose(0, 1).reshape(count, -1) @ out.T
            gate, up = (norm(x) @ gate_up.T).chunk(2, 1)
            x = x + silu(gate) * up @ down.T
        return norm(x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 5, 33, 70])
def test_hidden_states_on_the_cpu_are_those_of_torch(dtype: torch.dtype, count: int) -> None:
    """INNER is an odd number of panels, so that gates and their factors go alone at the end."""
    decoder = Decoder(dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(decoder(count, None).float(), decoder.plainly(count), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wanted", [[], [0], [8], [8, 0, 3], [4, 4], [*range(9), 8], [8] * 40])
def test_wanted_rows_on_the_cpu_are_those_of_all(dtype: torch.dtype, wanted: list[int]) -> None:
    """Also when there are none, or more than tokens: a chunk of a prompt with logprobs has its last row twice."""
    decoder, rows = Decoder(dtype), torch.tensor(wanted, dtype=torch.int64)
    expected = decoder(9, None)[rows]
    assert torch.equal(decoder(9, rows), expected)
