"""Which dtype a model runs in."""

import torch

from ..ipc.messages.config import EngineConfig
from ..kernels.torch_ops.linear import bf16_is_fast

_NAMED = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def resolve_dtype(config: EngineConfig) -> torch.dtype:
    """The dtype of weights, activations and KV cache.

    "auto" is bfloat16 for a checkpoint of half precision on a CPU with bfloat16 instructions, else float32.
    """
    if config.model.dtype != "auto":
        return _NAMED[config.model.dtype]
    hf_config = config.checkpoint.hf_config
    stored = str(hf_config.get("dtype") or hf_config.get("torch_dtype") or "float32").removeprefix("torch.")
    return torch.bfloat16 if stored in ("bfloat16", "float16") and bf16_is_fast() else torch.float32
