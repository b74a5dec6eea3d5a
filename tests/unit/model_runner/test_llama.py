"""Llama's options against transformers, the parsing of config.json, and the registry."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_checkpoint import tiny_config, write_tiny_llama
from transformers import LlamaConfig, LlamaForCausalLM

from ringpost.ipc.messages.config import Checkpoint, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from ringpost.ipc.messages.plans import NewRow, StepPlan
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.kernels.select import select_kernels
from ringpost.model_runner.batch import StepRows, build_inputs
from ringpost.model_runner.kv_cache import KVCache
from ringpost.model_runner.loading import load_model
from ringpost.model_runner.models import registry
from ringpost.model_runner.models.hf_fields import ModelConfigError
from ringpost.model_runner.models.llama_shape import LlamaShape
from ringpost.model_runner.models.registry import UnknownArchitectureError, register_model, resolve_model
from ringpost.model_runner.models.rope_shape import RopeShape
from ringpost.model_runner.runner import ModelRunner
from ringpost.model_runner.states import RowStates

LENGTH = 200
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one query head a kv head": {"num_key_value_heads": 4},
    "wide heads": {"head_dim": 32},
    "theta": {"rope_theta": 500000.0},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {"rope_scaling": LLAMA3},
}


def engine_config(directory: Path, dtype: str = "float32") -> EngineConfig:
    hf_config = json.loads((directory / "config.json").read_text())
    return EngineConfig(
        model=ModelConfig(dtype=dtype),  # type: ignore[arg-type]
        scheduler=SchedulerConfig(max_num_seqs=1),
        parallel=ParallelConfig(num_threads=1),
        checkpoint=Checkpoint(
            directory=str(directory), architecture="LlamaForCausalLM", hf_config=hf_config, max_model_len=256
        ),
    )


def all_logits(config: EngineConfig, tokens: list[int]) -> torch.Tensor:
    """Logits of every position of one prompt."""
    with torch.inference_mode():
        model = load_model(config)
        dtype = torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32
        cache = KVCache(model.shape, num_blocks=16, block_size=16, dtype=dtype)
        states = RowStates(max_num_seqs=1, max_model_len=256, block_size=16)
        plan = StepPlan(
            0, [NewRow(0, 0, tokens, len(tokens), list(range(16)), SamplingParams(seed=1))], [0], [0], [1], [[]], []
        )
        states.apply(plan)
        logits = []
        for start, count in ((0, 70), (70, len(tokens) - 70)):
            step = StepRows.from_plan(StepPlan(0, [], [0], [start], [count], [[]], []))
            inputs = build_inputs(step, states, cache, select_kernels())
            logits.append(model.compute_logits(model(dataclasses.replace(inputs, logit_rows=None), cache)))
        return torch.cat(logits)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_position_matches(tmp_path: Path, variant: str) -> None:
    torch.manual_seed(7)
    reference = LlamaForCausalLM(LlamaConfig(**(tiny_config(num_hidden_layers=2) | VARIANTS[variant])))
    with torch.no_grad():
        for name, weight in reference.named_parameters():
            # Initial weights are so small, and biases zero, that a mistake would hardly show.
            weight.copy_(torch.randn_like(weight) * (0.15 if weight.dim() > 1 or name.endswith("bias") else 0.5))
    reference.save_pretrained(tmp_path)
    # What transformers wrote, and the fields under their older names, mean the same.
    tokens = torch.randint(0, 260, (LENGTH,)).tolist()
    with torch.inference_mode():
        expected = reference.eval()(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(all_logits(engine_config(tmp_path), tokens), expected, rtol=1e-4, atol=1e-4)
    written = json.loads((tmp_path / "config.json").read_text())
    older = tiny_config(num_hidden_layers=2) | VARIANTS[variant]
    assert LlamaShape.from_hf(older) == LlamaShape.from_hf(written)


def test_bfloat16_is_close(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, torch_dtype="bfloat16")
    tokens = torch.randint(0, 260, (90,), generator=torch.Generator().manual_seed(1)).tolist()
    exact, rough = (all_logits(engine_config(tmp_path, dtype), tokens) for dtype in ("float32", "bfloat16"))
    assert rough.dtype == exact.dtype == torch.float32
    error = (rough.float() - exact).abs().max() / exact.abs().max()
    assert float(error) < 0.05


def test_a_step_that_wants_no_logits(tmp_path: Path) -> None:
    config = engine_config(write_tiny_llama(tmp_path))
    runner = ModelRunner(config=config)
    runner.init_cache(16)
    new = [NewRow(0, 0, [5, 6, 7], 3, [0], SamplingParams(temperature=0.0))]
    assert runner.execute(StepPlan(0, new, [0], [0], [3], [[]], [])).tokens == []


@pytest.mark.parametrize("token", [tiny_config()["vocab_size"], -1])
def test_a_token_that_there_is_not(tmp_path: Path, token: int) -> None:
    with pytest.raises(IndexError):
        all_logits(engine_config(write_tiny_llama(tmp_path)), [5] * 80 + [token] + [6] * 9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers must be an integer of at least 1, got '2'"),
        ({"num_attention_heads": True}, "num_attention_heads must be an integer"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"head_dim": None, "hidden_size": 66}, "hidden_size 66 must be a multiple of num_attention_heads 4"),
        ({"head_dim": 15}, "head_dim must be even, got 15"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a positive number, got 0"),
        ({"attention_bias": 1}, "attention_bias must be true or false, got 1"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope type 'yarn' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": 3}, "rope_scaling must be an object, got 3"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 5.0}}, "low_freq_factor 5.0 must be below"),
    ],
)
def test_a_faulty_config_names_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        LlamaShape.from_hf(tiny_config() | change)


def test_defaults_of_config_fields() -> None:
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    shape = LlamaShape.from_hf({name: tiny_config()[name] for name in sizes})
    assert (shape.num_kv_heads, shape.head_dim, shape.rms_norm_eps) == (4, 16, 1e-6)
    assert shape.rope == RopeShape(theta=10000.0)
    assert (shape.attention_bias, shape.mlp_bias, shape.tie_word_embeddings) == (False, False, False)


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(UnknownArchitectureError, match="'GPT2LMHeadModel' is not supported; known: LlamaForCausalLM"):
        resolve_model("GPT2LMHeadModel")


def test_a_registered_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))
    llama = resolve_model("LlamaForCausalLM")
    register_model("OtherForCausalLM", llama)
    assert resolve_model("OtherForCausalLM") is llama
