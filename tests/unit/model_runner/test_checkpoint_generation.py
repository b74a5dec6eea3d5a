"""The model's own sampling parameters: where they are read, which are taken, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import EOS_TOKEN_ID, write_tiny_llama

from ringpost.ipc.messages.config import Checkpoint, ModelConfig
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.model_runner.checkpoint.errors import CheckpointError
from ringpost.model_runner.checkpoint.resolve import resolve_checkpoint

ALL = {"temperature": 0.6, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "max_new_tokens": 77}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


def write(directory: Path, **fields: Any) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "generation_config.json"
    path.write_text(json.dumps(fields))
    return path


def resolve(model: Path, **options: Any) -> Checkpoint:
    return resolve_checkpoint(ModelConfig(model=str(model), **options))


def test_what_requests_can_have_is_taken_under_the_name_it_has_there(model: Path) -> None:
    write(model, **ALL, do_sample=False, num_beams=4, typical_p=0.5, eos_token_id=5)
    checkpoint = resolve(model)
    expected = {name: value for name, value in ALL.items() if name != "max_new_tokens"} | {"max_tokens": 77}
    assert checkpoint.default_sampling_params == expected
    assert checkpoint.eos_token_ids == (5, EOS_TOKEN_ID)
    SamplingParams(**checkpoint.default_sampling_params)


def test_nothing_is_taken_from_nothing(model: Path) -> None:
    write(model, temperature=None)
    assert resolve(model).default_sampling_params == {}
    (model / "generation_config.json").unlink()
    assert resolve(model).default_sampling_params == {}


def test_none_leaves_the_parameters_alone_but_not_the_end_tokens(model: Path) -> None:
    write(model, temperature=-1, eos_token_id=5)
    checkpoint = resolve(model, generation_config="none")
    assert (checkpoint.default_sampling_params, checkpoint.eos_token_ids) == ({}, (5, EOS_TOKEN_ID))


@pytest.mark.parametrize("by_file", [False, True])
def test_another_file_is_named_by_its_path_or_directory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_file: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    write(model, temperature=0.1)
    path = write(tmp_path / "other", temperature=0.7)
    option = "other/generation_config.json" if by_file else str(path.parent)
    assert resolve(model, generation_config=option).default_sampling_params == {"temperature": 0.7}


@pytest.mark.parametrize("option", ["nowhere", "~nobody-of-this-name/x", "x" * 5000, "."])
def test_a_path_without_the_file_is_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"generation_config must be auto, none, or the path .* got '"):
        resolve(model, generation_config=option)


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("temperature", -1, "a number from 0 to 2, got -1"),
        ("temperature", "0.7", "a number from 0 to 2, got '0.7'"),
        ("top_p", 0, "a number above 0, at most 1, got 0"),
        ("top_k", 1.5, "an integer of at least -1"),
        ("min_p", True, "a number from 0 to 1, got True"),
        ("repetition_penalty", 0, "a number from 0.001 to 1000, got 0"),
        ("max_new_tokens", 0, "None or an integer of at least 1, got 0"),
    ],
)
def test_a_value_that_no_request_could_have_is_refused(model: Path, field: str, value: Any, wanted: str) -> None:
    path = write(model, **{field: value})
    with pytest.raises(CheckpointError, match=rf"^{path}: {field} must be {wanted}"):
        resolve(model)


def test_a_file_that_holds_no_object_is_named(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("[]")
    with pytest.raises(CheckpointError, match=rf"{broken} must hold a JSON object"):
        resolve(model, generation_config=str(broken))


def test_a_model_without_a_tokenizer_resolves_where_none_is_loaded(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        resolve(model)
    assert resolve(model, skip_tokenizer_init=True).tokenizer_directory == str(model)
