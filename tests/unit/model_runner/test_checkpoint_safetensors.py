"""The safetensors format: files written here are read by the safetensors library, and damage is seen by the header."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ringpost.model_runner.checkpoint.errors import CheckpointError
from ringpost.model_runner.checkpoint.safetensors_file import TensorSpec, check_safetensors, write_safetensors


def write(path: Path, tensors: dict[str, NDArray[Any]]) -> Path:
    specs = [TensorSpec(name, "F32", value.shape) for name, value in tensors.items()]
    write_safetensors(path, specs, (value.tobytes() for value in tensors.values()))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b.weight": np.ones(5, dtype=np.float32)}
    return write(tmp_path_factory.mktemp("safetensors") / "whole.safetensors", tensors)


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"z": (3, 4), "é": (1,), "empty": (0, 2), "scalar": (), "a": (2, 2, 2)}
    tensors = {name: random.random(shape, dtype=np.float32) for name, shape in shapes.items()}
    path = write(tmp_path / "x.safetensors", tensors)
    check_safetensors(path)
    read = safetensors.numpy.load_file(path)
    assert read.keys() == tensors.keys()
    for name, value in tensors.items():
        np.testing.assert_array_equal(read[name], value)


@pytest.mark.parametrize("tensors", [{}, {"a": np.zeros((3, 3))}, {"a": np.zeros(3, dtype=np.int8), "b": np.zeros(2)}])
def test_files_of_the_library_pass_the_check_until_a_byte_is_lost(tmp_path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file(tensors, path)
    check_safetensors(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"x\.safetensors is "):
        check_safetensors(path)


def test_a_file_of_any_other_length_is_refused(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    check_safetensors(whole)
    path = tmp_path / "cut.safetensors"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"cut\.safetensors"):
            check_safetensors(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(CheckpointError, match=rf"is {len(data) + 1} bytes long, its header calls for {len(data)}"):
        check_safetensors(path)


@given(st.binary(max_size=64))
def test_any_header_is_accepted_or_refused_with_the_right_error(
    tmp_path_factory: pytest.TempPathFactory, header: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    try:
        check_safetensors(path)
    except CheckpointError as error:
        assert "any.safetensors" in str(error)  # noqa: PT017 - either outcome is right
