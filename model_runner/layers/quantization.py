"""Which modules are quantised, and their weights as they come from the checkpoint."""

import logging
from collections.abc import Iterable
from fnmatch import fnmatchcase

from ...ipc.messages.config import EngineConfig
from ...kernels.quantized import GROUP, QuantizedWeight, concatenate, dequantize, quantize
from ..weights import WeightReader

_logger = logging.getLogger("ringpost")


def quantization_of(config: EngineConfig, names: Iterable[str], in_features: int) -> str | None:
    """How a product of the modules with these names is quantised. Ignoring one of them keeps all of it dense."""
    chosen = config.quantization.quantization
    if chosen == "none" or _ignored(config, names) or in_features % GROUP:
        return None
    return chosen


def check_quantization(config: EngineConfig, modules: Iterable[tuple[str, int]]) -> None:
    """Say which of the model's modules, by name and inputs, cannot be quantised. ValueError for an entry that ignores none."""
    found = list(modules)
    for pattern in config.quantization.quantization_ignore:
        if not any(fnmatchcase(name, pattern) for name, _ in found):
            raise ValueError(f"quantization_ignore names {pattern!r}, which is no module of this model, such as {found[0][0]}")
    chosen = config.quantization.quantization
    odd = [name for name, size in found if size % GROUP and not _ignored(config, [name])]
    if chosen != "none" and odd:
        some = odd[0] if len(odd) == 1 else f"{odd[0]} and {len(odd) - 1} others"
        _logger.warning("not quantised, because their inputs are not a multiple of %d: %s", GROUP, some)


def read_merged(weights: WeightReader, shapes: dict[str, tuple[int, int]], quantization: str) -> QuantizedWeight:
    """The tensors of these names and shapes below one another, each as `read_quantized` has it, where all are alike."""
    parts = [read_quantized(weights, name, shape, quantization) for name, shape in shapes.items()]
    if len({part.quantization for part in parts}) > 1:
        parts = [part if part.quantization == quantization else quantize(dequantize(part), quantization) for part in parts]
    return concatenate(parts)


def read_quantized(weights: WeightReader, name: str, shape: tuple[int, int], quantization: str) -> QuantizedWeight:
    """The tensor of this name: as it is where the checkpoint has it in this form, or with more bits, else quantised."""
    kept = weights.read_quantized(name, shape, quantization)
    return quantize(weights.read(name, shape), quantization) if kept is None else kept


def _ignored(config: EngineConfig, names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in config.quantization.quantization_ignore)
