"""What the edge finds out about a model before any process starts: where it is, what it is, and that it is whole."""

from pathlib import Path
from typing import Any

from ...ipc.messages.config import Checkpoint, ModelConfig
from .errors import CheckpointError
from .generation_config import default_sampling_params, eos_token_ids
from .locate import locate_model, locate_tokenizer
from .weight_files import find_weight_files, read_json_object


def resolve_checkpoint(config: ModelConfig) -> Checkpoint:
    """Find `config.model`, fetch and convert it if it is not there yet, and check its files; no weight is read.

    Takes a few milliseconds for a model that is ready. Raises CheckpointError.
    """
    directory = locate_model(config)
    config_path = directory / "config.json"
    if not config_path.is_file():
        raise CheckpointError(f"{directory} has no config.json: a model directory must be in Hugging Face layout")
    hf_config = read_json_object(config_path)
    vocab_size = _positive(hf_config, "vocab_size", config_path)
    find_weight_files(directory)
    return Checkpoint(
        directory=str(directory),
        tokenizer_directory=str(locate_tokenizer(config, directory)),
        architecture=_architecture(hf_config, config_path),
        hf_config=hf_config,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids(directory, hf_config, vocab_size),
        max_model_len=_max_model_len(config.max_model_len, hf_config, config_path),
        default_sampling_params=default_sampling_params(config.generation_config, directory),
    )


def _positive(hf_config: dict[str, Any], field: str, path: Path) -> int:
    value = hf_config.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{field} in {path} must be a positive integer, got {value!r}")
    return value


def _architecture(hf_config: dict[str, Any], path: Path) -> str:
    architectures = hf_config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise CheckpointError(f"architectures in {path} must be a list with the name of a class, got {architectures!r}")
    return architectures[0]


def _max_model_len(option: int | None, hf_config: dict[str, Any], path: Path) -> int:
    limit = _positive(hf_config, "max_position_embeddings", path)
    if option is not None and option > limit:
        raise CheckpointError(f"max_model_len must be at most {limit}, the model's own limit, got {option}")
    return limit if option is None else option
