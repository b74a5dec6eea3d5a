"""What a kernel set offers: the functions every set defines with equal signatures, and the values they share.

Flat batches: T is the number of tokens of a step over all its requests, in request order. Caches are
[num_blocks, num_kv_heads, block_size, head_dim]; slot = block * block_size + offset. In which order the numbers of a
block and head lie is a set's own affair.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, dtype

from .quantized import QuantizedWeight


@dataclass(frozen=True)
class AttentionBatch:
    """Which positions a step computes, request by request.

    Request r computes positions starts[r] .. starts[r] + counts[r] - 1; each attends to all positions up to its own,
    whose keys and values lie in the blocks block_table[r], in order. Entries past a request's last block are ignored.
    """

    block_table: npt.NDArray[np.int32]  # [R, W]
    starts: npt.NDArray[np.int64]  # [R]
    counts: npt.NDArray[np.int64]  # [R], at least 1; sum T


@dataclass(frozen=True)
class PackedWeight:
    """A matrix in the form a set's `linear` wants. Only the set that made it can read `data`."""

    data: Tensor
    out_features: int
    in_features: int
    nbytes: int
    quantization: str | None = None


@dataclass(frozen=True)
class DecoderLayerWeights:
    """One layer: attention and gated MLP (SiLU), an RMSNorm before each. Biases are None where there are none."""

    input_norm: Tensor  # [hidden]
    qkv: PackedWeight  # to queries, keys and values side by side
    qkv_bias: Tensor | None
    out: PackedWeight
    out_bias: Tensor | None
    mlp_norm: Tensor  # [hidden]
    gate_up: PackedWeight  # to gates and what they multiply, side by side
    gate_up_bias: Tensor | None
    down: PackedWeight
    down_bias: Tensor | None


@dataclass(frozen=True)
class DecoderWeights:
    """A whole decoder of the Llama kind, from tokens to normed hidden states."""

    embedding: Tensor  # [vocab_size, hidden]
    layers: list[DecoderLayerWeights]
    norm: Tensor  # [hidden]
    cos_sin: Tensor  # as for `rotary`
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    scale: float  # of attention
    dtype: dtype  # of the KV cache and of the result


class FusedDecoder(Protocol):
    """A decoder as one kernel."""

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        attention: Any,
        caches: list[tuple[Tensor, Tensor]],
        wanted: Tensor | None,
    ) -> Tensor:
        """Hidden states [S, hidden] of the `wanted` ones of T tokens; None: of all.

        tokens, positions, slots and wanted are int64; `attention` is what `plan_attention` gave. Writes keys and values of all
        T tokens to the caches, which are the same at each call. Raises IndexError, before that, for a token that there is not.
        """
        ...


class KernelSet(Protocol):
    """The functions of a set. Results are new tensors, in the dtype of the first argument, unless said otherwise."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [T, hidden] divided by its root mean square (taken in float32), times weight [hidden]."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual)."""
        ...

    def rotary(self, heads: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
        """Rotate heads [T, H, D] (queries and keys alike) by their positions [T]; pairs are (i, i + D / 2).

        cos_sin is float32 [max_positions, D]: D / 2 cosines, then D / 2 sines.
        """
        ...

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for gate_up [T, 2 * I], the gate in the first half."""
        ...

    def write_kv(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
        """Store k and v [T, Hk, D] at the slots int64 [T] of the caches, in place."""
        ...

    def plan_attention(self, batch: AttentionBatch, *, num_kv_heads: int, head_dim: int, block_size: int, dtype: dtype) -> Any:
        """What `paged_attention` needs and all layers of a step share, computed once a step."""
        ...

    def paged_attention(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: Any, scale: float) -> Tensor:
        """Causal attention of q [T, H, D] over the cached positions of its request; [T, H, D].

        The step's own keys and values are in the cache already. Query head h reads KV head h // (H / Hk).
        """
        ...

    def pack_linear(self, weight: Tensor, quantization: str | None = None) -> PackedWeight:
        """Prepare weight [out, in] for `linear`, quantised by `quantize` if so wanted. The caller may drop the dense one."""
        ...

    def pack_quantized(self, weight: QuantizedWeight, dtype: dtype) -> PackedWeight:
        """The same for a weight that is quantised, and activations of this dtype. A set may keep it dense."""
        ...

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """x [T, in] @ weight.T + bias; [T, out]."""
        ...

    def logits(self, x: Tensor, weight: PackedWeight) -> Tensor:
        """x [S, in] @ weight.T as float32 [S, out], however narrow x and weight are."""
        ...

    def fuse_decoder(self, weights: DecoderWeights, *, block_size: int) -> FusedDecoder | None:
        """The decoder as one kernel over blocks of this size; None where the set has none for it."""
        ...

    def choose(self, logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """For each row of logits float32 [R, V], the token with the largest logit / temperature + noise, int64 [R], and its
        logit, float32 [R].

        temperature float32 [R]; where it is 0 the largest logit wins. seeds and positions are as for `gumbel_noise`, which the
        noise is. A NaN wins whatever else there is, and of equals the lowest token. The logits stay as they are.
        """
        ...

    def choose_product(
        self, x: Tensor, weight: PackedWeight, temperature: Tensor, seeds: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`choose` of `logits(x, weight)`, which a set need not keep anywhere."""
        ...

    def gumbel_noise(self, seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
        """Standard Gumbel noise float32 [R, vocab_size], a function of (seed, position, token) alone.

        seeds and positions are int64 [R]; a position is the index, in the whole sequence, of the token being drawn.
        """
        ...

    def gumbel_noise_at(self, seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """The same noise for chosen tokens: three int64 [N] to float32 [N]."""
        ...
