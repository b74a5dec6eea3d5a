"""Hub ids: what is asked of huggingface_hub, and what its failures become. The hub itself is never reached."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from tiny_checkpoint import write_tiny_llama

from ringpost.ipc.messages.config import ModelConfig
from ringpost.model_runner.checkpoint.errors import CheckpointError
from ringpost.model_runner.checkpoint.hub import is_hub_id
from ringpost.model_runner.checkpoint.resolve import resolve_checkpoint


@pytest.mark.parametrize("name", ["org/name", "HuggingFaceTB/SmolLM2-135M-Instruct", "a/b.c_d"])
def test_hub_ids(name: str) -> None:
    assert is_hub_id(name)


@pytest.mark.parametrize("name", ["name", "/org/name", "./name", "../name", "~/name", "a/b/c", "org/", "org/na me", "a/b\n"])
def test_names_that_are_no_hub_ids(name: str) -> None:
    assert not is_hub_id(name)


def test_a_snapshot_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def snapshot_download(repo_id: str, **options: Any) -> str:
        asked.append((repo_id, options))
        return str(write_tiny_llama(tmp_path / "snapshot"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    found = resolve_checkpoint(ModelConfig(model="org/name", revision="v2"))
    assert found.directory == str(tmp_path / "snapshot")
    ((repo_id, options),) = asked
    assert (repo_id, options["revision"]) == ("org/name", "v2")
    assert options["allow_patterns"] == ["*.json", "*.safetensors", "*.jinja"]


@pytest.mark.parametrize("error", [OSError("no route\nsecond line"), ValueError("no route"), RuntimeError("no route")])
def test_a_failure_is_one_line_with_a_way_out(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(repo_id: str, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError) as caught:
        resolve_checkpoint(ModelConfig(model="org/name", revision="v2"))
    assert str(caught.value).startswith(
        "cannot get the model 'org/name' at revision 'v2' from the Hugging Face hub: no route; it takes network access"
    )
    assert "\n" not in str(caught.value)
