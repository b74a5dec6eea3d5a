"""Builds a model and fills it from its checkpoint."""

from collections.abc import Callable

from torch import nn

from ..ipc.messages.config import EngineConfig
from .layers.base import Layer
from .layers.quantization import check_quantization
from .models.registry import CausalLM, resolve_model
from .weights import WeightReader

OnProgress = Callable[[int, int], None]  # layers done, layers in all


def load_model(config: EngineConfig, on_progress: OnProgress | None = None) -> CausalLM:
    """The model of `config.checkpoint`, with weights.

    Raises ValueError for an unknown architecture, a faulty config.json, faulty weights or modules to ignore that are not there.
    """
    model = resolve_model(config.checkpoint.architecture)(config=config)
    layers = weight_layers(model)
    check_quantization(config, [module for layer in layers for module in layer.modules_by_inputs.items()])
    weights = WeightReader(config.checkpoint.directory)
    for done, layer in enumerate(layers, start=1):
        layer.load(weights)
        if on_progress is not None:
            on_progress(done, len(layers))
    return model


def weight_layers(model: CausalLM) -> list[Layer]:
    """The layers that hold weights."""
    assert isinstance(model, nn.Module)
    return [module for module in model.modules() if isinstance(module, Layer)]
