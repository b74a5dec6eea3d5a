"""Models of the Hugging Face hub, downloaded into that hub's own cache."""

import re
from pathlib import Path

from .errors import CheckpointError

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HUB_ID = re.compile(f"{_NAME}/{_NAME}")


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form org/name."""
    return _HUB_ID.fullmatch(name) is not None


def hub_directory(repo_id: str, revision: str | None) -> Path:
    """The local snapshot of a model, with the files that are needed here. Raises CheckpointError without one."""
    # Imported here because it costs more than resolving a local model.
    import huggingface_hub  # noqa: PLC0415

    try:
        snapshot = huggingface_hub.snapshot_download(
            repo_id,
            revision=revision,
            allow_patterns=["*.json", "*.safetensors", "*.jinja"],
            ignore_patterns=["*/*", "consolidated*.safetensors"],  # copies in other formats
        )
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        at = f" at revision {revision!r}" if revision else ""
        raise CheckpointError(
            f"cannot get the model {repo_id!r}{at} from the Hugging Face hub: {reason}; "
            "it takes network access once (and HF_TOKEN for a gated model), or give a local directory instead"
        ) from error
    return Path(snapshot)
