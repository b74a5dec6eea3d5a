"""The Triton set. So far RMSNorm is its own; all else is the reference's until it has a kernel here."""

from ..reference import (
    choose,
    choose_product,
    fuse_decoder,
    gumbel_noise,
    gumbel_noise_at,
    linear,
    logits,
    pack_linear,
    pack_quantized,
    paged_attention,
    plan_attention,
    rotary,
    silu_and_mul,
    write_kv,
)
from .norm import add_rms_norm, rms_norm

__all__ = [
    "add_rms_norm",
    "choose",
    "choose_product",
    "fuse_decoder",
    "gumbel_noise",
    "gumbel_noise_at",
    "linear",
    "logits",
    "pack_linear",
    "pack_quantized",
    "paged_attention",
    "plan_attention",
    "rms_norm",
    "rotary",
    "silu_and_mul",
    "write_kv",
]
