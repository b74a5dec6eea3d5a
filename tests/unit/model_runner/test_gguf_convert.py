"""A GGUF file and the Hugging Face directory it becomes: the same weights, config and tokenizer, or a clear refusal."""

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from tiny_checkpoint import EOS_TOKEN_ID, Float32s, tiny_config, tiny_tokenizer
from tiny_gguf import write_tiny_gguf
from tokenizers import Tokenizer

from ringpost.ipc.messages.config import ModelConfig
from ringpost.model_runner.checkpoint import gguf_tensors
from ringpost.model_runner.checkpoint.errors import CheckpointError
from ringpost.model_runner.checkpoint.gguf_convert import convert_gguf
from ringpost.model_runner.checkpoint.resolve import resolve_checkpoint

TYPES = gguf.GGMLQuantizationType


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "converted"
    made.mkdir()
    return made


def assert_weights(directory: Path, wanted: dict[str, Float32s]) -> None:
    with safe_open(directory / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(wanted)
        for name, value in wanted.items():
            assert torch.equal(file.get_tensor(name), torch.from_numpy(value).bfloat16()), name


@pytest.mark.parametrize("quantization", [TYPES.F32, TYPES.F16, TYPES.BF16, TYPES.Q8_0, TYPES.Q4_1])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_survive_the_round_trip(
    path: Path, directory: Path, quantization: gguf.GGMLQuantizationType, tied: bool
) -> None:
    weights = write_tiny_gguf(path, quantization=quantization, tied=tied)
    assert ("lm_head.weight" in weights) != tied
    convert_gguf(path, directory)
    assert_weights(directory, weights)
    assert json.loads((directory / "config.json").read_text())["tie_word_embeddings"] == tied


@pytest.mark.parametrize("values", [1, 1000])
def test_weights_are_the_same_in_small_pieces(
    path: Path, directory: Path, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_tensors, "CHUNK_VALUES", values)
    weights = write_tiny_gguf(path, quantization=TYPES.Q8_0)
    convert_gguf(path, directory)
    assert_weights(directory, weights)


def test_rows_of_queries_and_keys_go_back_in_order() -> None:
    # Two heads of four rows; each row holds its number in Hugging Face's order.
    stored = np.array([0, 2, 1, 3, 4, 6, 5, 7], dtype=np.uint16)[:, np.newaxis]
    assert gguf_tensors.unpermuted(stored, 2)[:, 0].tolist() == list(range(8))


def test_the_config_is_that_of_the_model(path: Path, directory: Path) -> None:
    write_tiny_gguf(path)
    convert_gguf(path, directory)
    config = json.loads((directory / "config.json").read_text())
    wanted = tiny_config(torch_dtype="bfloat16")
    assert {key: config.get(key) for key in wanted} == wanted
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": wanted["rope_theta"]}
    assert config["rms_norm_eps"] == 1e-5  # not its neighbour in float32


def test_the_tokenizer_gives_the_same_ids(path: Path, directory: Path) -> None:
    write_tiny_gguf(path)
    convert_gguf(path, directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    for text in ["Hello the 12 int\n\n", "<|im_start|>user\nétoile 👍<|im_end|>"]:
        ids = tokenizer.encode(text).ids
        assert ids == tiny_tokenizer().encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode([EOS_TOKEN_ID]) == ""  # control tokens are special
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert config == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": "{{ messages }}",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "add_bos_token": False,
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }


def test_the_end_of_a_turn_also_ends_an_answer(path: Path, directory: Path) -> None:
    write_tiny_gguf(path, metadata={"tokenizer.ggml.eot_token_id": 0})
    convert_gguf(path, directory)
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == [EOS_TOKEN_ID, 0]


def test_a_gguf_file_resolves_and_is_converted_once_per_content(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGPOST_CACHE", str(tmp_path / "cache"))
    write_tiny_gguf(path)
    first = resolve_checkpoint(ModelConfig(model=str(path)))
    assert (first.architecture, first.eos_token_ids, first.max_model_len) == ("LlamaForCausalLM", (EOS_TOKEN_ID,), 512)
    made = Path(first.directory, "config.json").stat().st_mtime_ns
    monkeypatch.chdir(tmp_path)
    assert resolve_checkpoint(ModelConfig(model="tiny.gguf")) == first
    assert Path(first.directory, "config.json").stat().st_mtime_ns == made
    os.utime(path, ns=(0, 0))
    assert resolve_checkpoint(ModelConfig(model=str(path))).directory != first.directory


SQUARE = np.zeros((64, 64), dtype=np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "bert"}, r"general\.architecture of the GGUF file is 'bert', supported: llama"),
        ({"metadata": {"split.count": 3}}, r"is one of 3 parts; merge them"),
        ({"metadata": {"llama.expert_count": 8}}, r"mixture of experts"),
        ({"metadata": {"llama.rope.scaling.type": "yarn"}}, r"rope\.scaling\.type of the GGUF file is 'yarn'"),
        ({"metadata": {"llama.rope.dimension_count": 8}}, r"rotates 8 of 16 dimensions of a head"),
        ({"metadata": {"llama.block_count": None}}, r"lacks the key llama\.block_count"),
        ({"metadata": {"llama.block_count": "two"}}, r"llama\.block_count must be of type int, got 'two'"),
        ({"metadata": {"llama.block_count": 3}}, r"it lacks 9 tensors, the first is blk\.2\.attn_k\.weight"),
        ({"metadata": {"llama.block_count": 1}}, r"it has 9 tensors that a plain llama lacks, the first is blk\.1"),
        ({"metadata": {"llama.attention.head_count": 0}}, r"it has 0 heads of"),
        (
            {"metadata": {"llama.feed_forward_length": 64}},
            r"blk\.0\.ffn_gate\.weight has the shape \(128, 64\), .* \(64, 64\)",
        ),
        ({"weights": {"rope_freqs.weight": SQUARE[0]}}, r"that a plain llama lacks, the first is rope_freqs\.weight"),
        ({"weights": {"token_embd.weight": None}}, r"it lacks 1 tensors, the first is token_embd\.weight"),
        ({"weights": {"blk.0.attn_k.weight": SQUARE}}, r"attn_k\.weight has the shape \(64, 64\), .* say \(32, 64\)"),
        (
            {"metadata": {"tokenizer.ggml.model": "llama"}},
            r"tokenizer\.ggml\.model of the GGUF file is 'llama', supported: gpt2",
        ),
        (
            {"metadata": {"tokenizer.ggml.pre": "tekken"}},
            r"tokenizer\.ggml\.pre of the GGUF file is 'tekken', supported: smollm",
        ),
        ({"metadata": {"tokenizer.ggml.pre": None}}, r"lacks the key tokenizer\.ggml\.pre"),
        ({"metadata": {"tokenizer.ggml.tokens": ["a", "a"]}}, r"tokens of the GGUF file has 1 repeated"),
        ({"metadata": {"tokenizer.ggml.merges": ["q z"]}}, r"merges of the GGUF file do not fit its tokens"),
        (
            {"metadata": {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}},
            r"asks for a token before each prompt, but has no valid bos_token_id",
        ),
    ],
)
def test_what_would_go_wrong_is_refused(path: Path, directory: Path, change: dict[str, Any], message: str) -> None:
    write_tiny_gguf(path, **change)
    with pytest.raises(CheckpointError, match=rf"tiny\.gguf cannot be converted: .*{message}") as caught:
        convert_gguf(path, directory)
    assert "\n" not in str(caught.value)
    assert not (directory / "model.safetensors").exists()


def test_a_file_of_another_format_is_refused(path: Path, directory: Path) -> None:
    path.write_bytes(b"PK\x03\x04 not this")
    with pytest.raises(CheckpointError, match=r"it is not a GGUF file \(it starts with b'PK"):
        convert_gguf(path, directory)


def test_a_file_that_is_cut_short_is_refused_wherever_it_ends(path: Path, directory: Path) -> None:
    write_tiny_gguf(path)
    data = path.read_bytes()
    for length in [4, 8, 23, 24, 100, 1000, 5000, 12000, len(data) // 2, len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"it is damaged, cut short or of an unknown version"):
            convert_gguf(path, directory)
