"""LlamaShape: what config.json says about a model of the Llama family, checked."""

from dataclasses import dataclass
from typing import Any

from .hf_fields import ModelConfigError, flag, integer, positive
from .rope_shape import RopeShape


@dataclass(frozen=True)
class LlamaShape:
    """Sizes and options of a Llama model, under the names used here."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope: RopeShape
    attention_bias: bool
    mlp_bias: bool
    tie_word_embeddings: bool

    @classmethod
    def from_hf(cls, hf: dict[str, Any]) -> "LlamaShape":
        """From the content of config.json; ModelConfigError names the field that is missing or wrong."""
        hidden, heads = integer(hf, "hidden_size"), integer(hf, "num_attention_heads")
        kv_heads = integer(hf, "num_key_value_heads", heads)
        if heads % kv_heads:
            raise ModelConfigError(
                f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
            )
        if hf.get("head_dim") is None and hidden % heads:
            raise ModelConfigError(
                f"config.json: without head_dim, hidden_size {hidden} must be a multiple of num_attention_heads {heads}"
            )
        head_dim = integer(hf, "head_dim", hidden // heads)
        if head_dim % 2:
            raise ModelConfigError(f"config.json: head_dim must be even, got {head_dim}")
        if hf.get("hidden_act", "silu") != "silu":
            raise ModelConfigError(f"config.json: hidden_act {hf['hidden_act']!r} is not supported (only 'silu')")
        return cls(
            hidden_size=hidden,
            intermediate_size=integer(hf, "intermediate_size"),
            num_layers=integer(hf, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=integer(hf, "vocab_size"),
            max_position=integer(hf, "max_position_embeddings", 2048),
            rms_norm_eps=positive(hf, "rms_norm_eps", 1e-6),
            rope=RopeShape.from_hf(hf),
            attention_bias=flag(hf, "attention_bias"),
            mlp_bias=flag(hf, "mlp_bias"),
            tie_word_embeddings=flag(hf, "tie_word_embeddings"),
        )
