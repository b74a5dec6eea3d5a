"""The whole decoder in one call of C: between its kernels there is nothing to wait for but the slowest thread."""

from ctypes import c_void_p

import torch
from torch import Tensor

from ..interface import DecoderLayerWeights, DecoderWeights, PackedWeight
from .attention import BatchPlan, fits
from .library import Decoder, Heads, Layer, Step, Weight, library
from .linear import LANES, weight_struct


def fuse_decoder(weights: DecoderWeights, *, block_size: int) -> "CDecoder | None":
    """The decoder in C, for sizes that fill whole vectors; None for others."""
    hidden = weights.norm.shape[0]
    inner = weights.layers[0].down.in_features
    whole = hidden % LANES == 0 and inner % LANES == 0
    return CDecoder(weights, block_size) if whole and fits(head_dim=weights.head_dim, block_size=block_size) else None


class CDecoder:
    """A FusedDecoder. It keeps what the library points to."""

    def __init__(self, weights: DecoderWeights, block_size: int) -> None:
        self._kept: list[Tensor] = []
        self._hidden = weights.norm.shape[0]
        self._dtype = weights.dtype
        self._weights = weights
        self._embedding = weights.embedding.to(weights.dtype).contiguous()
        self._layers = (Layer * len(weights.layers))(*map(self._layer, weights.layers))
        heads = Heads(weights.num_heads, weights.num_kv_heads, weights.head_dim, block_size, weights.dtype == torch.bfloat16)
        self._struct = Decoder(
            len(weights.layers),
            self._hidden,
            len(self._embedding),
            self._embedding.data_ptr(),
            heads,
            weights.eps,
            weights.scale,
            self._floats(weights.norm),
            self._floats(weights.cos_sin),
            self._layers,
        )
        self._caches: list[tuple[Tensor, Tensor]] = []
        self._decode = library().ringpost_decode

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        attention: BatchPlan,
        caches: list[tuple[Tensor, Tensor]],
        wanted: Tensor | None,
    ) -> Tensor:
        """See FusedDecoder. Raises MemoryError when there is no memory for the step's activations."""
        if caches is not self._caches:
            self._point_to(caches)
        count = len(tokens)
        num_wanted = count if wanted is None else len(wanted)
        hidden = torch.empty((num_wanted, self._hidden), dtype=self._dtype)
        step = Step(
            count,
            tokens.data_ptr(),
            positions.data_ptr(),
            slots.data_ptr(),
            attention.struct,
            None if wanted is None else wanted.data_ptr(),
            num_wanted,
            self._keys,
            self._values,
            hidden.data_ptr(),
        )
        done = self._decode(self._struct, step)
        if done < 0:
            raise IndexError(f"tokens are 0 to {len(self._embedding) - 1}, got {tokens.min()} to {tokens.max()}")
        if not done:
            raise MemoryError(f"no memory for the activations of {count} tokens")
        return hidden

    def _point_to(self, caches: list[tuple[Tensor, Tensor]]) -> None:
        self._caches = caches
        self._keys = (c_void_p * len(caches))(*(keys.data_ptr() for keys, _ in caches))
        self._values = (c_void_p * len(caches))(*(values.data_ptr() for _, values in caches))

    def _layer(self, weights: DecoderLayerWeights) -> Layer:
        return Layer(
            self._floats(weights.input_norm),
            self._floats(weights.mlp_norm),
            self._packed(weights.qkv, weights.qkv_bias),
            self._packed(weights.out, weights.out_bias),
            self._packed(weights.gate_up, weights.gate_up_bias),
            self._packed(weights.down, weights.down_bias),
        )

    def _packed(self, weight: PackedWeight, bias: Tensor | None) -> Weight:
        if bias is not None:
            bias = bias.float().contiguous()
            self._kept.append(bias)
        return weight_struct(weight, bias)

    def _floats(self, tensor: Tensor) -> int:
        wide = tensor.float().contiguous()
        self._kept.append(wide)
        return wide.data_ptr()
