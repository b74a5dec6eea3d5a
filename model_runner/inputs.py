"""StepInputs: what one forward pass works on."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class StepInputs:
    """A flat mixed batch of T tokens, request after request. All tensors are int64."""

    tokens: Tensor  # [T]
    positions: Tensor  # [T]
    slots: Tensor  # [T], where the KV cache takes the token's key and value
    attention: Any  # the kernel set's attention plan, shared by all layers
    logit_rows: Tensor | None  # [S], the tokens whose logits are wanted; None: of all, in order
