"""A tiny random Llama checkpoint in Hugging Face layout, with a byte-level BPE tokenizer, made without torch.

Token ids of the tokenizer: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|> (end of sequence), 3..258 the bytes 0..255,
then the merges.
"""

import json
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers

from ringpost.model_runner.checkpoint.safetensors_file import TensorSpec, write_safetensors

Float32s: TypeAlias = NDArray[np.float32]

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_TOKEN_ID = 2
FIRST_BYTE_ID = len(SPECIAL_TOKENS)
MERGES = (("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("e", "r"), ("o", "n"), ("Ġ", "a"), ("l", "l"), ("Ġ", "Ġ"))
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """The character that stands for each byte 0..255 in a byte-level vocabulary."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte if byte in printable else next(hidden)) for byte in range(256)]


def tiny_tokenizer() -> tokenizers.Tokenizer:
    """Byte-level BPE over all 256 bytes, a few merges and the special tokens."""
    tokens = [*SPECIAL_TOKENS, *byte_characters(), *(left + right for left, right in MERGES)]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES)))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def tiny_config(**overrides: Any) -> dict[str, Any]:
    """The config.json of the tiny model; `overrides` replace or add fields."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(SPECIAL_TOKENS) + 256 + len(MERGES),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": EOS_TOKEN_ID,
    } | overrides


def tiny_weights(config: dict[str, Any], seed: int) -> dict[str, Float32s]:
    """Random float32 weights under the names of a Hugging Face Llama; each matrix is [out, in]."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (query, hidden),
            prefix + "self_attn.k_proj.weight": (key, hidden),
            prefix + "self_attn.v_proj.weight": (key, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, query),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
    random = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> Float32s:
        noise = random.standard_normal(shape, dtype=np.float32)
        scaled = 1 + noise / 10 if len(shape) == 1 else noise / np.sqrt(shape[-1])
        return scaled.astype(np.float32)

    return {name: draw(shape) for name, shape in shapes.items()}


def write_weights(path: Path, weights: dict[str, Float32s], dtype: str) -> None:
    """Write `weights` as one safetensors file in `dtype`, float32 or bfloat16 (cut, not rounded)."""
    code = {"float32": "F32", "bfloat16": "BF16"}[dtype]
    specs = [TensorSpec(name, code, value.shape) for name, value in weights.items()]
    # The upper half of a float32 is a bfloat16.
    parts = [value if code == "F32" else value.view(np.uint16)[..., 1::2] for value in weights.values()]
    write_safetensors(path, specs, (part.tobytes() for part in parts))


def write_tiny_llama(directory: Path, *, seed: int = 0, **config_overrides: Any) -> Path:
    """Fill `directory` (made if missing) with a tiny checkpoint, and return it. The same seed gives the same weights.

    `config_overrides` change fields of config.json, and the weights with them; torch_dtype float32 or bfloat16 is the
    type of the stored weights.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = tiny_config(**config_overrides)
    write_weights(directory / "model.safetensors", tiny_weights(config, seed), config["torch_dtype"])
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "model_max_length": config["max_position_embeddings"],
        "add_bos_token": False,
    }
    for name, value in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (directory / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    return directory
