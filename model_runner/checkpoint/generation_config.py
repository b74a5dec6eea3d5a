"""generation_config.json: the sampling parameters that a model's makers recommend, and the tokens that end its answers."""

from pathlib import Path
from typing import Any

from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import SamplingParams
from .errors import CheckpointError
from .weight_files import read_json_object

FILE_NAME = "generation_config.json"
AUTO, NONE = "auto", "none"
_FIELDS = {  # of the file, and what SamplingParams calls them
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def default_sampling_params(option: str, directory: Path) -> dict[str, Any]:
    """Fields of SamplingParams for requests that name none, by the option `generation_config` of a model in `directory`.

    Raises CheckpointError, naming the file and the field, for a value that no request could have.
    """
    if option == NONE:
        return {}
    path = directory / FILE_NAME if option == AUTO else _named(option)
    if option == AUTO and not path.is_file():
        return {}
    source = read_json_object(path)
    defaults = {}
    for field, name in _FIELDS.items():
        value = source.get(field)
        if value is None:
            continue
        try:
            defaults[name] = getattr(SamplingParams(**{name: value}), name)
        except ParameterError as error:
            wrong = str(error).replace(name, field, 1)
            raise CheckpointError(f"{path}: {wrong}; generation_config={NONE!r} leaves the file alone") from None
    return defaults


def _named(option: str) -> Path:
    """The file that the option names, itself or by its directory."""
    try:
        path = Path(option).expanduser().absolute()
        path = path / FILE_NAME if path.is_dir() else path
        found = path.is_file()
    except (OSError, RuntimeError):  # too long, not permitted, or ~ of an unknown user
        found = False
    if not found:
        choices = f"{AUTO}, {NONE}, or the path of a {FILE_NAME} or of a directory with one"
        raise CheckpointError(f"generation_config must be {choices}, got {option[:200]!r}")
    return path


def eos_token_ids(directory: Path, hf_config: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    """The ids of generation_config.json, if there is one, then those that only config.json has."""
    sources = {directory / "config.json": hf_config}
    generation_path = directory / FILE_NAME
    if generation_path.is_file():
        sources = {generation_path: read_json_object(generation_path), **sources}
    ids: list[int] = []
    for path, source in sources.items():
        value = source.get("eos_token_id")
        for index in value if isinstance(value, list) else [] if value is None else [value]:
            if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < vocab_size:
                raise CheckpointError(f"eos_token_id in {path} must be token ids from 0 to {vocab_size - 1}, got {value!r}")
            ids.append(index)
    return tuple(dict.fromkeys(ids))
