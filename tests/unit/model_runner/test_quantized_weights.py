"""Weights quantised while a model is loaded: which, from what, and what is said of those that cannot be."""

import logging
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from tiny_checkpoint import tiny_config, tiny_weights, write_tiny_llama
from tiny_gguf import write_tiny_gguf
from tiny_runner import engine_config, prefill, prompt

from ringpost.ipc.messages.config import QuantizationConfig
from ringpost.kernels.quantized import dequantize, quantize
from ringpost.model_runner.checkpoint.gguf_convert import convert_gguf
from ringpost.model_runner.layers.base import Layer
from ringpost.model_runner.layers.embedding import LMHead
from ringpost.model_runner.layers.linear import MergedLinear
from ringpost.model_runner.loading import load_model, weight_layers
from ringpost.model_runner.runner import ModelRunner
from ringpost.model_runner.weights import WeightError, WeightReader

TYPES = gguf.GGMLQuantizationType
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def loaded(directory: Path, quantization: str = "int8", *ignore: str, dtype: str = "float32") -> list[Layer]:
    return weight_layers(load_model(quantized_config(directory, quantization, *ignore, dtype=dtype)))


def quantized_config(directory: Path, quantization: Any, *ignore: str, dtype: Any = "float32") -> Any:
    chosen = QuantizationConfig(quantization=quantization, quantization_ignore=ignore)
    return replace(engine_config(directory, dtype=dtype), quantization=chosen)


def kinds(layers: list[Layer]) -> dict[str, str | None]:
    return {
        name: layer.packed.quantization
        for layer in layers
        if isinstance(layer, MergedLinear | LMHead)
        for name in layer.modules_by_inputs
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_all_products_are_quantised_and_weights_take_less(tiny: str, quantization: str, dtype: str) -> None:
    dense, small = (loaded(Path(tiny), chosen, dtype=dtype) for chosen in ("none", quantization))
    assert set(kinds(dense).values()) == {None}
    assert set(kinds(small).values()) == {quantization}
    assert "lm_head" in kinds(small)
    sizes = [sum(layer.weight_bytes for layer in layers if kinds([layer])) for layers in (dense, small)]
    assert sizes[1] < sizes[0] * (0.6 if quantization == "int8" else 0.4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_runner_answers_much_as_with_dense_weights(tiny: str, dtype: str) -> None:
    tokens = prompt(40)
    answers = []
    for chosen in ("none", "int8"):
        runner = ModelRunner(config=quantized_config(Path(tiny), chosen, dtype=dtype))
        runner.init_cache(24)
        answers.append([prefill(runner, tokens[:length], 7).tokens for length in range(10, 40)])
    same = sum(one == other for one, other in zip(*answers, strict=True))
    assert same >= 24, "of 30 tokens after random weights, whose logits lie close together"


@pytest.mark.parametrize(
    ("ignore", "dense"),
    [
        (["lm_head"], {"lm_head"}),
        (["*.0.mlp.down_proj", "lm_*"], {"model.layers.0.mlp.down_proj", "lm_head"}),
        (["model.layers.1.self_attn.k_proj"], {f"model.layers.1.self_attn.{part}_proj" for part in "qkv"}),
    ],
)
def test_modules_can_be_left_as_they_are(tiny: str, ignore: list[str], dense: set[str]) -> None:
    found = kinds(loaded(Path(tiny), "int4", *ignore))
    assert {name for name, kind in found.items() if kind is None} == dense


def test_an_entry_that_means_nothing_is_refused(tiny: str) -> None:
    with pytest.raises(
        ValueError, match=r"quantization_ignore names 'lm_haed', which is no module of this model, such as model\."
    ):
        load_model(quantized_config(Path(tiny), "int8", "lm_haed"))


def test_products_of_other_sizes_stay_dense_and_one_line_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = write_tiny_llama(tmp_path / "odd", intermediate_size=120)
    with caplog.at_level(logging.WARNING, "ringpost"):
        found = kinds(loaded(directory))
    down = {f"model.layers.{i}.mlp.down_proj" for i in range(2)}
    assert {name for name, kind in found.items() if kind is None} == down
    said = "not quantised, because their inputs are not a multiple of 32: model.layers.0.mlp.down_proj and 1 others"
    assert [record.getMessage() for record in caplog.records] == [said]


@pytest.mark.parametrize(("kind", "quantization"), [(TYPES.Q4_0, "int4"), (TYPES.Q4_1, "int4"), (TYPES.Q8_0, "int8")])
def test_blocks_of_gguf_are_taken_over_number_by_number(tmp_path: Path, kind: Any, quantization: str) -> None:
    meant = write_tiny_gguf(tmp_path / "tiny.gguf", quantization=kind)
    directory = tmp_path / "converted"
    directory.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", directory)
    reader = WeightReader(str(directory))
    for name, weight in meant.items():
        if weight.ndim == 2:
            kept = reader.read_quantized(name, weight.shape, quantization)
            assert kept is not None, name
            assert kept.quantization == quantization
            assert torch.equal(dequantize(kept), torch.from_numpy(weight)), name
    assert set(kinds(loaded(directory, quantization)).values()) == {quantization}


def test_eight_bits_serve_for_four_but_not_the_other_way(tmp_path: Path) -> None:
    for kind, asked, given in ((TYPES.Q8_0, "int4", "int8"), (TYPES.Q4_1, "int8", None)):
        directory = tmp_path / kind.name
        directory.mkdir()
        meant = write_tiny_gguf(tmp_path / "tiny.gguf", quantization=kind)
        convert_gguf(tmp_path / "tiny.gguf", directory)
        kept = WeightReader(str(directory)).read_quantized(Q_PROJ, meant[Q_PROJ].shape, asked)
        assert (kept and kept.quantization) == given


def test_parts_of_a_product_are_quantised_alike(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", quantization=TYPES.Q8_0)
    convert_gguf(tmp_path / "tiny.gguf", tmp_path)
    blocks = tmp_path / "gguf-blocks.safetensors"
    tensors = load_file(blocks)
    save_file({name: value for name, value in tensors.items() if Q_PROJ not in name}, blocks)
    found = kinds(loaded(tmp_path, "int4"))
    assert {found[f"model.layers.0.self_attn.{part}_proj"] for part in "qkv"} == {"int4"}
    assert found["model.layers.1.self_attn.q_proj"] == "int8"


def test_blocks_of_another_size_are_refused(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", quantization=TYPES.Q8_0)
    convert_gguf(tmp_path / "tiny.gguf", tmp_path)
    with pytest.raises(WeightError, match=r"tensor .*q_proj.weight.Q8_0' in .*gguf-blocks.safetensors: expected shape"):
        WeightReader(str(tmp_path)).read_quantized(Q_PROJ, (32, 64), "int8")


def test_other_checkpoints_are_quantised_from_their_dense_values(tiny: str) -> None:
    reader = WeightReader(tiny)
    weight = tiny_weights(tiny_config(), seed=0)[Q_PROJ]
    assert reader.read_quantized(Q_PROJ, weight.shape, "int8") is None
    kept = quantize(reader.read(Q_PROJ, weight.shape), "int8")
    assert torch.equal(dequantize(kept), dequantize(quantize(torch.from_numpy(weight), "int8")))
