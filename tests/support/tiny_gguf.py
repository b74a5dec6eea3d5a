"""A tiny GGUF file with the weights and the tokenizer of the tiny checkpoint, in the layout llama.cpp gives them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tiny_checkpoint import Float32s, tiny_config, tiny_tokenizer, tiny_weights

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """GGUF's name of a Hugging Face weight."""
    stem = name.removesuffix(".weight")
    if not stem.startswith("model.layers."):
        return f"{NAMES[stem]}.weight"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[part]}.weight"


def interleaved(weight: Float32s, num_heads: int) -> Float32s:
    """Rows of a query or key projection in GGUF's order: row 2i + j of a head is Hugging Face's row i + j * d / 2."""
    head_dim = len(weight) // num_heads
    order = [head * head_dim + i + j * head_dim // 2 for head in range(num_heads) for i in range(head_dim // 2) for j in (0, 1)]
    return weight[order]


def tiny_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that describe the tiny model and its tokenizer."""
    tokenizer = json.loads(tiny_tokenizer().to_str())
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = list(tokenizer["model"]["vocab"])
    return {
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{{ messages }}",
    }


def write_tiny_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    tied: bool = True,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: Mapping[str, Any] | None = None,
    weights: Mapping[str, Float32s | None] | None = None,
) -> dict[str, Float32s]:
    """Write `path` and return the weights it stands for, under Hugging Face names, as they are after dequantisation.

    Entries of `metadata` (by key) and `weights` (by GGUF name) are added or replaced; None takes them away.
    """
    config = tiny_config(tie_word_embeddings=tied)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (tiny_metadata(config) | dict(metadata or {})).items():
        if value is not None:
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            add.get(type(value), writer.add_array)(key, value)
    meant: dict[str, Float32s] = {}
    stored: dict[str, Float32s | None] = {}
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, weight in tiny_weights(config, seed=0).items():
        kind = quantization if weight.ndim > 1 else gguf.GGMLQuantizationType.F32
        meant[name] = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)
        num_heads = heads.get(name.split(".")[-2])
        stored[gguf_name(name)] = interleaved(weight, num_heads) if num_heads else weight
    for name, value in (stored | dict(weights or {})).items():
        if value is not None:
            kind = quantization if value.ndim > 1 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(value), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant
