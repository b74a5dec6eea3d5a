"""The CPU set: C kernels, compiled by the system's compiler on first use.

Importing it compiles them, and raises BuildError where that cannot be done. Small things that a model put together from single
kernels needs are torch's operators.
"""

from ..reference.noise import gumbel_noise, gumbel_noise_at
from ..torch_ops.elementwise import add_rms_norm, rms_norm, rotary, silu_and_mul
from .attention import paged_attention, plan_attention, write_kv
from .choice import choose, choose_product
from .decoder import fuse_decoder
from .library import library
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

library()
