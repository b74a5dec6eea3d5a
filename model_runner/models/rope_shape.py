"""RopeShape: which rotary embedding config.json asks for."""

from dataclasses import dataclass
from typing import Any

from .hf_fields import ModelConfigError, integer, positive


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
        theta = positive(scaling if "rope_theta" in scaling else hf, "rope_theta", 10000.0)
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind == "default":
            return cls(theta)
        if kind == "linear":
            return cls(theta, kind, positive(scaling, "factor"))
        if kind != "llama3":
            raise ModelConfigError(f"config.json: rope type {kind!r} is not supported (only default, linear, llama3)")
        low, high = positive(scaling, "low_freq_factor"), positive(scaling, "high_freq_factor")
        if low >= high:
            raise ModelConfigError(f"config.json: low_freq_factor {low} must be below high_freq_factor {high}")
        original = integer(scaling, "original_max_position_embeddings")
        return cls(theta, kind, positive(scaling, "factor"), low, high, original)
