"""resolve_checkpoint on directories in Hugging Face layout: what it finds out, and what it refuses."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import EOS_TOKEN_ID, tiny_config, write_tiny_llama

from ringpost.ipc.messages.config import Checkpoint, ModelConfig
from ringpost.model_runner.checkpoint.errors import CheckpointError
from ringpost.model_runner.checkpoint.resolve import resolve_checkpoint
from ringpost.model_runner.checkpoint.weight_files import find_weight_files


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


def resolve(model: Path | str, **options: Any) -> Checkpoint:
    return resolve_checkpoint(ModelConfig(model=str(model), **options))


def edit(path: Path, **fields: Any) -> None:
    """Set fields of a JSON object; None removes one."""
    value = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: entry for key, entry in value.items() if entry is not None}))


def shard(model: Path) -> list[str]:
    """Replace the weights by an index over two copies of them under other names."""
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in names:
        shutil.copy(model / "model.safetensors", model / name)
    (model / "model.safetensors").unlink()
    weight_map = {"a": names[0], "b": names[1], "c": names[0]}
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return names


def test_a_directory_is_described(model: Path) -> None:
    config = tiny_config()
    assert resolve(model) == Checkpoint(
        directory=str(model),
        tokenizer_directory=str(model),
        architecture="LlamaForCausalLM",
        hf_config=config,
        vocab_size=config["vocab_size"],
        eos_token_ids=(EOS_TOKEN_ID,),
        max_model_len=config["max_position_embeddings"],
    )


def test_a_relative_directory_becomes_absolute(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    assert resolve("./model").directory == str(model)
    assert resolve("model").directory == str(model)


def test_the_home_directory_is_expanded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(model.parent))
    assert resolve("~/model").directory == str(model)


def test_a_path_goes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_tiny_llama(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name").directory == str(directory)


def test_shards_are_found_through_the_index(model: Path) -> None:
    names = shard(model)
    assert find_weight_files(model) == tuple(model / name for name in names)
    assert resolve(model).directory == str(model)


@pytest.mark.parametrize(
    ("generation", "config", "wanted"),
    [
        ([5, 2], 2, (5, 2)),
        (7, 2, (7, 2)),
        ([3, 3], [4, 3], (3, 4)),
        (None, [9], (9,)),
        (None, None, ()),
        (0, None, (0,)),
    ],
)
def test_eos_ids_of_both_files_are_merged(model: Path, generation: Any, config: Any, wanted: tuple[int, ...]) -> None:
    edit(model / "generation_config.json", eos_token_id=generation)
    edit(model / "config.json", eos_token_id=config)
    assert resolve(model).eos_token_ids == wanted


def test_generation_config_is_optional(model: Path) -> None:
    (model / "generation_config.json").unlink()
    assert resolve(model).eos_token_ids == (EOS_TOKEN_ID,)


def test_max_model_len_may_be_lowered_to_any_length_and_not_raised(model: Path) -> None:
    limit = tiny_config()["max_position_embeddings"]
    assert resolve(model, max_model_len=1).max_model_len == 1
    assert resolve(model, max_model_len=limit).max_model_len == limit
    with pytest.raises(CheckpointError, match=rf"max_model_len must be at most {limit}, .* got {limit + 1}"):
        resolve(model, max_model_len=limit + 1)


@pytest.mark.parametrize("given", ["", "tokenizer.json"])
def test_the_tokenizer_may_come_from_elsewhere(model: Path, tmp_path: Path, given: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (model / "tokenizer.json").rename(other / "tokenizer.json")
    found = resolve(model, tokenizer=str(other / given))
    assert (found.directory, found.tokenizer_directory) == (str(model), str(other))


def overwrite(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(model: Path) -> None:
        (model / name).write_bytes(content)

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def set_config(**fields: Any) -> Callable[[Path], None]:
    return lambda model: edit(model / "config.json", **fields)


def cut(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def lose_a_shard(model: Path) -> None:
    (model / shard(model)[1]).unlink()


def index(content: bytes) -> Callable[[Path], None]:
    def damage(model: Path) -> None:
        (model / "model.safetensors").unlink()
        (model / "model.safetensors.index.json").write_bytes(content)

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("config.json"), r"model has no config\.json: .*Hugging Face layout"),
        (overwrite("config.json", b"{"), r"config\.json is not valid JSON"),
        (overwrite("config.json", b"\xff\xfe"), r"config\.json is not valid JSON"),
        (overwrite("config.json", b"[1]"), r"config\.json must hold a JSON object, it holds \[1\]"),
        (overwrite("generation_config.json", b"nonsense"), r"generation_config\.json is not valid JSON"),
        (set_config(architectures=None), r"architectures in .*config\.json must be a list .* got None"),
        (set_config(architectures=[]), r"architectures in .* got \[\]"),
        (set_config(vocab_size=None), r"vocab_size in .*config\.json must be a positive integer, got None"),
        (set_config(vocab_size=True), r"vocab_size in .* got True"),
        (set_config(max_position_embeddings="8k"), r"max_position_embeddings in .* positive integer, got '8k'"),
        (set_config(eos_token_id="</s>"), r"eos_token_id in .*config\.json must be token ids .* got '</s>'"),
        (set_config(eos_token_id=[1, 268]), r"eos_token_id in .* from 0 to 267, got \[1, 268\]"),
        (remove("model.safetensors"), r"has neither model\.safetensors nor model\.safetensors\.index\.json"),
        (cut, r"model\.safetensors is \d+ bytes long, its header calls for \d+"),
        (overwrite("model.safetensors", b""), r"model\.safetensors is not a safetensors file"),
        (overwrite("model.safetensors", b"version https://git-lfs"), r"is not a safetensors file"),
        (overwrite("model.safetensors", b"\x10" + b"\0" * 9), r"is cut short: 10 bytes, but its header .* 16 long"),
        (overwrite("model.safetensors", b"\x02" + b"\0" * 7 + b"[]"), r"its header is no table of tensors"),
        (lose_a_shard, r"cannot read .*model-00002-of-00002\.safetensors: No such file"),
        (index(b"{}"), r"index\.json must map tensor names to files in its field weight_map"),
        (index(b'{"weight_map": {"a": "../b"}}'), r"index\.json names the file '\.\./b', which must be a plain file"),
        (remove("tokenizer.json"), r"has no tokenizer\.json; the option tokenizer may name another"),
    ],
)
def test_a_damaged_directory_is_refused(model: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(model)
    with pytest.raises(CheckpointError, match=message) as caught:
        resolve(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["nope", "", "./nope", "a/b/c", "org/model.gguf", "~nobody-of-that-name/x", "x" * 9999, "a\0b"]
)
def test_an_unknown_model_is_told_what_would_do(name: str) -> None:
    with pytest.raises(
        CheckpointError, match=r"(unknown model|does not exist).*alias \(smollm2\), a directory .*\.gguf file, .*org/name"
    ):
        resolve(name)


def test_a_file_that_is_no_gguf_is_refused_by_its_name(model: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors' is neither a directory nor a \.gguf file: give an"):
        resolve(model / "model.safetensors")


def test_an_unknown_tokenizer_is_told_what_would_do(model: Path) -> None:
    for name in ["nope", str(model / "config.json")]:
        with pytest.raises(CheckpointError, match=rf"unknown tokenizer '{name}': give a directory with tokenizer\.json"):
            resolve(model, tokenizer=name)


@pytest.mark.parametrize("name", ["smollm2", "nope"])
def test_a_revision_needs_a_hub_id(name: str) -> None:
    with pytest.raises(CheckpointError, match=rf"revision 'main' makes sense for a hub id only, the model is '{name}'"):
        resolve(name, revision="main")


def test_resolving_a_directory_imports_nothing_heavy(model: Path) -> None:
    code = (
        "import sys\n"
        "from ringpost.ipc.messages.config import ModelConfig\n"
        "from ringpost.model_runner.checkpoint.resolve import resolve_checkpoint\n"
        "resolve_checkpoint(ModelConfig(model=sys.argv[1]))\n"
        "heavy = {'torch', 'transformers', 'numpy', 'gguf', 'tokenizers', 'huggingface_hub', 'rich'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    command = [sys.executable, "-P", "-c", code, str(model)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"
