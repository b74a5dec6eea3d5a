"""From what the user calls a model to a directory in Hugging Face layout."""

import hashlib
from pathlib import Path

from ...ipc.messages.config import ModelConfig
from .cache import cached_directory
from .demo_model import ALIASES, demo_directory
from .errors import CheckpointError
from .hub import hub_directory, is_hub_id

ACCEPTED = (
    f"an alias ({', '.join(ALIASES)}), a directory with config.json and safetensors, a .gguf file, "
    "or a Hugging Face hub id such as org/name"
)


def locate_model(config: ModelConfig) -> Path:
    """The absolute directory of `config.model`, fetched and converted if need be; its contents are not checked.

    An alias goes before a path, and a path before a hub id: write ./smollm2 for a directory named like an alias.
    """
    name = config.model
    path = None if name in ALIASES else _existing_path(name)
    if config.revision is not None and (path is not None or not is_hub_id(name)):
        raise CheckpointError(f"revision {config.revision!r} makes sense for a hub id only, the model is {name!r}")
    if name in ALIASES:
        return demo_directory(ALIASES[name], _convert)
    if path is not None:
        return path.absolute() if path.is_dir() else _gguf_directory(path)
    if is_hub_id(name) and not name.endswith(".gguf"):
        return hub_directory(name, config.revision)
    if name.startswith((".", "/", "~")):
        raise CheckpointError(f"model {name[:200]!r} does not exist: give {ACCEPTED}")
    raise CheckpointError(f"unknown model {name[:200]!r}: give {ACCEPTED}")


def locate_tokenizer(config: ModelConfig, model_directory: Path) -> Path:
    """The absolute directory that holds the tokenizer.json to use; with `skip_tokenizer_init` it may lack it."""
    name = config.tokenizer
    if name is None:
        directory = model_directory
    elif name in ALIASES:
        directory = demo_directory(ALIASES[name], _convert)
    else:
        path = _existing_path(name)
        if path is None or not (path.is_dir() or path.name == "tokenizer.json"):
            raise CheckpointError(
                f"unknown tokenizer {name[:200]!r}: give a directory with tokenizer.json, "
                f"the path of a tokenizer.json, or an alias ({', '.join(ALIASES)})"
            )
        directory = path.absolute() if path.is_dir() else path.absolute().parent
    if not config.skip_tokenizer_init and not (directory / "tokenizer.json").is_file():
        raise CheckpointError(f"{directory} has no tokenizer.json; the option tokenizer may name another directory")
    return directory


def _existing_path(name: str) -> Path | None:
    """The file or directory of this name; None also for what cannot be a name of one."""
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, RuntimeError):  # too long, not permitted, or ~ of an unknown user
        return None


def _gguf_directory(path: Path) -> Path:
    if path.suffix.lower() != ".gguf":
        raise CheckpointError(f"model {str(path)!r} is neither a directory nor a .gguf file: give {ACCEPTED}")
    path = path.resolve()
    stat = path.stat()
    # Hashing the contents at every start would take longer than all else.
    identity = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return cached_directory(f"{path.stem[:64]}-{key}", lambda directory, scratch: _convert(path, directory))


def _convert(path: Path, directory: Path) -> None:
    # Imported here because gguf and numpy take longer to import than a converted model takes to resolve.
    from .gguf_convert import convert_gguf  # noqa: PLC0415

    convert_gguf(path, directory)
