"""What happens before the first step: weights that do not fit, dtypes, and the free memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoint import tiny_config, write_tiny_llama

from ringpost.ipc.messages.config import Checkpoint, EngineConfig, ModelConfig
from ringpost.model_runner import dtypes
from ringpost.model_runner.dtypes import resolve_dtype
from ringpost.model_runner.memory import available_memory
from ringpost.model_runner.runner import ModelRunner
from ringpost.model_runner.weights import WeightError, WeightReader

NAME = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path)


def load(directory: Path) -> ModelRunner:
    checkpoint = Checkpoint(
        directory=str(directory), architecture="LlamaForCausalLM", hf_config=tiny_config(), max_model_len=64
    )
    return ModelRunner(config=EngineConfig(checkpoint=checkpoint))


def rewrite(directory: Path, change: dict[str, torch.Tensor | None]) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file) | change
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)


def test_a_missing_tensor(directory: Path) -> None:
    rewrite(directory, {NAME: None})
    with pytest.raises(WeightError, match=rf"'{NAME}' of shape \[64, 128\] is not in {directory}"):
        load(directory)


def test_a_tensor_of_another_shape(directory: Path) -> None:
    rewrite(directory, {NAME: torch.zeros(64, 127)})
    with pytest.raises(WeightError, match=rf"'{NAME}' in .*model.safetensors: expected shape \[64, 128\].*\[64, 127\]"):
        load(directory)


def test_a_tensor_of_another_type(directory: Path) -> None:
    rewrite(directory, {NAME: torch.zeros(64, 128, dtype=torch.int8)})
    with pytest.raises(WeightError, match=rf"'{NAME}' in .*: type I8 is not one of F64, F32, F16, BF16"):
        load(directory)


@pytest.mark.parametrize("kept", [0, 5, 400, -1])
def test_a_truncated_file(directory: Path, kept: int) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(WeightError, match=f"{file} cannot be read"):
        load(directory)


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=f"no model.safetensors and no model.safetensors.index.json in {tmp_path}"):
        WeightReader(str(tmp_path))


def shard(directory: Path) -> list[Path]:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    file.unlink()
    files = [directory / "a.safetensors", directory / "b.safetensors"]
    weight_map = {name: files[i % 2].name for i, name in enumerate(tensors)}
    for part in files:
        save_file({name: tensors[name] for name, target in weight_map.items() if target == part.name}, part)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return files


def test_shards_are_read_through_their_index(directory: Path) -> None:
    whole = WeightReader(str(directory)).read(NAME, (64, 128), torch.float32).clone()
    weight_bytes = load(directory).describe().weight_bytes
    shard(directory)
    assert torch.equal(WeightReader(str(directory)).read(NAME, (64, 128), torch.float32), whole)
    assert load(directory).describe().weight_bytes == weight_bytes


def test_a_missing_shard_and_a_broken_index(directory: Path) -> None:
    shard(directory)[1].unlink()
    with pytest.raises(WeightError, match=r"cannot be read from .*b.safetensors"):
        load(directory)
    (directory / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(WeightError, match="is not an index of safetensors shards"):
        load(directory)


@pytest.mark.parametrize(
    ("asked", "stored", "fast", "expected"),
    [
        ("auto", "bfloat16", True, torch.bfloat16),
        ("auto", "float16", True, torch.bfloat16),
        ("auto", "bfloat16", False, torch.float32),
        ("auto", "float32", True, torch.float32),
        ("bfloat16", "float32", False, torch.bfloat16),
        ("float32", "bfloat16", True, torch.float32),
    ],
)
@pytest.mark.parametrize("field", ["dtype", "torch_dtype"])
def test_dtype(monkeypatch: pytest.MonkeyPatch, asked: Any, stored: str, fast: bool, expected: torch.dtype, field: str) -> None:
    monkeypatch.setattr(dtypes, "bf16_is_fast", lambda: fast)
    config = EngineConfig(model=ModelConfig(dtype=asked), checkpoint=Checkpoint(hf_config={field: stored}))
    assert resolve_dtype(config) == expected


def test_free_memory_heeds_control_groups(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    files = {
        proc / "meminfo": "MemTotal: 4000 kB\nMemAvailable: 1000 kB\n",
        proc / "self/cgroup": "0::/outer/inner\n",
        cgroups / "outer/memory.max": "500000\n",
        cgroups / "outer/memory.current": "300000\n",
        cgroups / "outer/memory.stat": "anon 5\ninactive_file 50000\n",
        cgroups / "outer/inner/memory.max": "max\n",
        cgroups / "outer/inner/memory.current": "200000\n",
    }
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert available_memory(proc, cgroups) == 250000
    (proc / "self/cgroup").write_text("4:cpu,memory:/box\n0::/\n")
    assert available_memory(proc, cgroups) == 1024000
    (cgroups / "memory/box").mkdir(parents=True)
    (cgroups / "memory/box/memory.limit_in_bytes").write_text("700000\n")
    (cgroups / "memory/box/memory.usage_in_bytes").write_text("800000\n")
    assert available_memory(proc, cgroups) == 0
    assert available_memory() > 2**20
