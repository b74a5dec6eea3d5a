"""The safetensors files of a directory in Hugging Face layout."""

from pathlib import Path
from typing import Any

import msgspec

from .errors import CheckpointError
from .safetensors_file import check_safetensors

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
BLOCKS_FILE = "gguf-blocks.safetensors"  # quantised blocks of a GGUF file as they were, beside the dense weights


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in the JSON file `path`. Raises CheckpointError where it is missing, unreadable or no object."""
    try:
        value = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, it holds {value!s:.40}")
    return value


def find_weight_files(directory: Path) -> tuple[Path, ...]:
    """The safetensors files that hold the weights, each checked to be whole; no weight is read.

    Raises CheckpointError, naming the file, where one is missing or damaged.
    """
    single, index = directory / SINGLE_FILE, directory / INDEX_FILE
    if single.is_file():
        files = [single]
    elif index.is_file():
        files = [directory / name for name in _shards(index)]
    else:
        raise CheckpointError(f"{directory} has neither {SINGLE_FILE} nor {INDEX_FILE}")
    if (blocks := directory / BLOCKS_FILE).is_file():
        files.append(blocks)
    for file in files:
        try:
            check_safetensors(file)
        except OSError as error:
            raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from error
    return tuple(files)


def _shards(index: Path) -> list[str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} must map tensor names to files in its field weight_map")
    shards = sorted({str(name) for name in weight_map.values()})
    for name in shards:
        if Path(name).name != name:
            raise CheckpointError(f"{index} names the file {name!r}, which must be a plain file name beside it")
    return shards
