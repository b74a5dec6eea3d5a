"""Tensors of a llama GGUF as Hugging Face weights: their names, their order of rows and their values in bfloat16."""

from typing import Any, TypeVar

import gguf
import numpy as np
from numpy.typing import NDArray

from .errors import CheckpointError

OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
KEPT_TYPES = ("Q4_0", "Q4_1", "Q8_0")
N = TypeVar("N", np.uint8, np.uint16)
CHUNK_VALUES = 1 << 22  # dequantised at a time, so that a large embedding needs no float32 copy of itself


def hugging_face_names(num_layers: int, *, tied: bool) -> dict[str, str]:
    """GGUF name -> Hugging Face name of every tensor that such a model has, in the order they are stored."""
    names = {name: target for name, target in OUTER_NAMES.items() if not (tied and name == "output.weight")}
    for layer in range(num_layers):
        for name, target in LAYER_NAMES.items():
            names[f"blk.{layer}.{name}"] = f"model.layers.{layer}.{target}"
    return names


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Row-major shape of a GGUF tensor, whose own shape has the fastest dimension first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of `values` in bfloat16, rounded to nearest, ties to even; a NaN stays a (quiet) NaN."""
    bits = values.view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    quiet_nan = (bits >> 16) | np.uint32(0x0040)  # rounding could carry a NaN over into infinity or zero
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16)


def dequantized(tensor: Any) -> NDArray[np.uint16]:
    """The values of a GGUF tensor in bfloat16. Raises CheckpointError for a type that gguf cannot dequantise."""
    shape = shape_of(tensor)
    rows = tensor.data if len(shape) > 1 else tensor.data[np.newaxis]
    result = np.empty((len(rows), shape[-1]), dtype=np.uint16)
    step = max(1, CHUNK_VALUES // shape[-1])
    for start in range(0, len(rows), step):
        try:
            values = gguf.quants.dequantize(rows[start : start + step], tensor.tensor_type)
        except NotImplementedError as error:
            raise CheckpointError(f"tensor {tensor.name} has the type {tensor.tensor_type.name}: {error}") from error
        result[start : start + step] = to_bfloat16(np.ascontiguousarray(values, dtype=np.float32))
    return result.reshape(shape)


def blocks_of(tensor: Any) -> NDArray[np.uint8] | None:
    """The bytes of a matrix whose blocks weights can be quantised to just as they are, a row of it a row; None for others."""
    return tensor.data if tensor.tensor_type.name in KEPT_TYPES and len(tensor.shape) == 2 else None


def unpermuted(weight: NDArray[N], num_heads: int) -> NDArray[N]:
    """Rows of a query or key projection in Hugging Face's order.

    GGUF keeps the two rows that rotary embedding turns together next to each other, (0, 1) (2, 3) ...; Hugging Face
    keeps them half a head apart, (0, d/2) (1, d/2 + 1) ....
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
