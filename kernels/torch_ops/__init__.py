"""The CPU set without a compiler: torch operators and oneDNN with weights packed once.

The noise and the cache write are the reference's: torch offers nothing faster.
"""

from ..reference.cache import write_kv
from ..reference.decoder import fuse_decoder
from ..reference.noise import gumbel_noise, gumbel_noise_at
from .attention import paged_attention, plan_attention
from .choice import choose, choose_product
from .elementwise import add_rms_norm, rms_norm, rotary, silu_and_mul
from .linear import linear, logits, pack_linear, pack_quantized

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
