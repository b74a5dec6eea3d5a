"""Which class runs which architecture."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from ...ipc.messages.config import EngineConfig
from ..inputs import StepInputs
from ..kv_cache import KVCache
from .llama import LlamaForCausalLM
from .llama_shape import LlamaShape


class CausalLM(Protocol):
    """What the runner asks of a model. It is an nn.Module whose layers with weights derive from `Layer`."""

    shape: LlamaShape

    def __call__(self, inputs: StepInputs, cache: KVCache) -> Tensor:
        """Hidden states [S, hidden] of `inputs.logit_rows`; writes keys and values of all T tokens to the cache."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [S, vocab_size] of hidden states [S, hidden]."""
        ...


@runtime_checkable
class ChoosingLM(Protocol):
    """A model that can also choose tokens without making logits that anybody sees."""

    def choose(self, hidden: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The kernels' `choose` among the logits of hidden states [S, hidden]."""
        ...


class ModelClass(Protocol):
    """The constructor every model class shares."""

    def __call__(self, *, config: EngineConfig, prefix: str = "") -> CausalLM:
        """Build without weights."""
        ...


class UnknownArchitectureError(ValueError):
    """No class is registered for the architecture that config.json names."""


_MODELS: dict[str, ModelClass] = {"LlamaForCausalLM": LlamaForCausalLM}


def register_model(architecture: str, cls: ModelClass) -> None:
    """Let `cls` run checkpoints of this architecture, in place of any class registered before."""
    _MODELS[architecture] = cls


def resolve_model(architecture: str) -> ModelClass:
    """The class for an architecture; UnknownArchitectureError lists the known ones."""
    if architecture not in _MODELS:
        known = ", ".join(sorted(_MODELS))
        raise UnknownArchitectureError(f"architecture {architecture!r} is not supported; known: {known}")
    return _MODELS[architecture]
