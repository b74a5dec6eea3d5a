"""The reference set: plain torch, written to be read. It defines what every other set must compute."""

from .activation import silu_and_mul
from .attention import paged_attention, plan_attention
from .cache import write_kv
from .choice import choose, choose_product
from .decoder import fuse_decoder
from .linear import linear, logits, pack_linear, pack_quantized
from .noise import gumbel_noise, gumbel_noise_at
from .norm import add_rms_norm, rms_norm
from .rotary import rotary

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
