"""Metadata of a llama GGUF as Hugging Face's config.json and generation_config.json."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import CheckpointError

ARCHITECTURES = ("llama",)
Metadata = Mapping[str, Any]  # key -> plain value, as in the file


def require(metadata: Metadata, key: str, kind: type[Any]) -> Any:
    """The value of `key`. Raises CheckpointError where it is missing, not a `kind`, or a number below zero."""
    if key not in metadata:
        raise CheckpointError(f"the GGUF file lacks the key {key}")
    value: Any = metadata[key]
    if not isinstance(value, kind) or (kind in (int, float) and value < 0):
        raise CheckpointError(f"the GGUF key {key} must be of type {kind.__name__}, got {value!r:.60}")
    return value


def optional(metadata: Metadata, key: str, kind: type[Any], default: Any) -> Any:
    """As `require`, with a default for a missing key."""
    return require(metadata, key, kind) if key in metadata else default


def check_architecture(metadata: Metadata) -> None:
    """Raise CheckpointError for a model that the conversion would get wrong."""
    architecture = require(metadata, "general.architecture", str)
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"general.architecture of the GGUF file is {architecture!r}, supported: {', '.join(ARCHITECTURES)}"
        )
    if (parts := optional(metadata, "split.count", int, 1)) > 1:
        raise CheckpointError(f"the GGUF file is one of {parts} parts; merge them first")
    if optional(metadata, "llama.expert_count", int, 0):
        raise CheckpointError("the GGUF file is a mixture of experts (llama.expert_count), which is not supported")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise CheckpointError(f"llama.rope.scaling.type of the GGUF file is {scaling!r}, supported: none")


def model_config(metadata: Metadata, *, vocab_size: int, tied: bool) -> dict[str, Any]:
    """config.json of the model."""
    hidden = require(metadata, "llama.embedding_length", int)
    heads = require(metadata, "llama.attention.head_count", int)
    head_dim = optional(metadata, "llama.attention.key_length", int, hidden // max(heads, 1))
    rotary = optional(metadata, "llama.rope.dimension_count", int, head_dim)
    value_dim = optional(metadata, "llama.attention.value_length", int, head_dim)
    if (rotary, value_dim) != (head_dim, head_dim):
        raise CheckpointError(
            f"the GGUF file rotates {rotary} of {head_dim} dimensions of a head and has values of {value_dim}; "
            "the three must be equal"
        )
    theta = _shortest(optional(metadata, "llama.rope.freq_base", float, 10000.0))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": require(metadata, "llama.feed_forward_length", int),
        "num_hidden_layers": require(metadata, "llama.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": optional(metadata, "llama.attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "max_position_embeddings": require(metadata, "llama.context_length", int),
        "rms_norm_eps": _shortest(require(metadata, "llama.attention.layer_norm_rms_epsilon", float)),
        # transformers reads rope_parameters from version 5 on, and rope_theta before.
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "bos_token_id": token_id(metadata, "bos"),
        "eos_token_id": token_id(metadata, "eos"),
    }


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """generation_config.json: the ids that end an answer are the end of sequence and, if it differs, of a turn."""
    ids = [token_id(metadata, role) for role in ("eos", "eot")]
    ends = list(dict.fromkeys(index for index in ids if index is not None))
    config = {
        "bos_token_id": token_id(metadata, "bos"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        "pad_token_id": token_id(metadata, "padding"),
    }
    return {key: value for key, value in config.items() if value not in (None, [])}


def token_id(metadata: Metadata, role: str) -> int | None:
    """The id of the token with this role (bos, eos, eot, padding), if the file names one."""
    index: int | None = optional(metadata, f"tokenizer.ggml.{role}_token_id", int, None)
    return index


def _shortest(value: float) -> float:
    """The number with the fewest digits that is `value` in float32, as GGUF stores it: 1e-05, not 9.99999974e-06."""
    return float(str(np.float32(value)))
