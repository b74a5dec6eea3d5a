"""LlamaShape: what config.json says about a model of the Llama family, checked."""

import math
from dataclasses import dataclass
from typing import Any


class ModelConfigError(ValueError):
    """config.json lacks a field, contradicts itself, or asks for something that is not supported."""


@dataclass(frozen=True)
class RopeShape:
    """Base and scaling of the rotary embedding."""

    theta: float
    kind: str = "default"  # default, linear or llama3
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0

    @classmethod
    def from_hf(cls, hf: dict[str, Any]) -> "RopeShape":
        """From `rope_parameters`, or from `rope_theta` and `rope_scaling`."""
        scaling = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
        if not isinstance(scaling, dict):
            raise ModelConfigError(f"config.json: rope_scaling must be an object, got {scaling!r}")
        theta = _positive(scaling if "rope_theta" in scaling else hf, "rope_theta", 10000.0)
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind == "default":
            return cls(theta)
        if kind == "linear":
            return cls(theta, kind, _positive(scaling, "factor"))
        if kind != "llama3":
            raise ModelConfigError(f"config.json: rope type {kind!r} is not supported (only default, linear, llama3)")
        low, high = _positive(scaling, "low_freq_factor"), _positive(scaling, "high_freq_factor")
        if low >= high:
            raise ModelConfigError(f"config.json: low_freq_factor {low} must be below high_freq_factor {high}")
        original = _integer(scaling, "original_max_position_embeddings")
        return cls(theta, kind, _positive(scaling, "factor"), low, high, original)


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
        hidden, heads = _integer(hf, "hidden_size"), _integer(hf, "num_attention_heads")
        kv_heads = _integer(hf, "num_key_value_heads", heads)
        if heads % kv_heads:
            raise ModelConfigError(
                f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
            )
        if hf.get("head_dim") is None and hidden % heads:
            raise ModelConfigError(
                f"config.json: without head_dim, hidden_size {hidden} must be a multiple of num_attention_heads {heads}"
            )
        head_dim = _integer(hf, "head_dim", hidden // heads)
        if head_dim % 2:
            raise ModelConfigError(f"config.json: head_dim must be even, got {head_dim}")
        if hf.get("hidden_act", "silu") != "silu":
            raise ModelConfigError(f"config.json: hidden_act {hf['hidden_act']!r} is not supported (only 'silu')")
        return cls(
            hidden_size=hidden,
            intermediate_size=_integer(hf, "intermediate_size"),
            num_layers=_integer(hf, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=_integer(hf, "vocab_size"),
            max_position=_integer(hf, "max_position_embeddings", 2048),
            rms_norm_eps=_positive(hf, "rms_norm_eps", 1e-6),
            rope=RopeShape.from_hf(hf),
            attention_bias=_flag(hf, "attention_bias"),
            mlp_bias=_flag(hf, "mlp_bias"),
            tie_word_embeddings=_flag(hf, "tie_word_embeddings"),
        )


def _value(fields: dict[str, Any], name: str, default: Any) -> Any:
    value = fields.get(name)
    if value is None:
        value = default
    if value is None:
        raise ModelConfigError(f"config.json: {name} is missing")
    return value


def _integer(fields: dict[str, Any], name: str, default: int | None = None) -> int:
    value = _value(fields, name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelConfigError(f"config.json: {name} must be an integer of at least 1, got {value!r}")
    return value


def _positive(fields: dict[str, Any], name: str, default: float | None = None) -> float:
    value = _value(fields, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and math.isfinite(value)):
        raise ModelConfigError(f"config.json: {name} must be a positive number, got {value!r}")
    return float(value)


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = _value(fields, name, False)
    if not isinstance(value, bool):
        raise ModelConfigError(f"config.json: {name} must be true or false, got {value!r}")
    return value
