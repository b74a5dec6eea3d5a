"""Builds a model and fills it from its checkpoint."""

import sys
import time

from rich.console import Console
from rich.progress import Progress
from torch import nn

from ..ipc.messages.config import EngineConfig
from .layers.base import Layer
from .models.registry import CausalLM, resolve_model
from .weights import WeightReader

_QUIET_SECONDS = 2.0


def load_model(config: EngineConfig) -> CausalLM:
    """The model of `config.checkpoint`, with weights.

    Raises ValueError for an unknown architecture, a faulty config.json or faulty weights.
    """
    model = resolve_model(config.checkpoint.architecture)(config=config)
    layers = weight_layers(model)
    weights = WeightReader(config.checkpoint.directory)
    started = time.monotonic()
    progress: Progress | None = None
    try:
        for done, layer in enumerate(layers, start=1):
            layer.load(weights)
            if progress is None and sys.stderr.isatty() and time.monotonic() - started > _QUIET_SECONDS:
                progress = _start_progress(len(layers))
            if progress is not None:
                progress.update(progress.task_ids[0], completed=done)
    finally:
        if progress is not None:
            progress.stop()
    return model


def weight_layers(model: CausalLM) -> list[Layer]:
    """The layers that hold weights."""
    assert isinstance(model, nn.Module)
    return [module for module in model.modules() if isinstance(module, Layer)]


def _start_progress(total: int) -> Progress:
    # On standard error, as standard output belongs to whoever started the process.
    progress = Progress(console=Console(stderr=True), transient=True)
    progress.add_task("Loading weights", total=total)
    progress.start()
    return progress
