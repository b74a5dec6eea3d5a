"""What an import costs and brings along, seen in fresh processes that start the way actors do: with -P."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from source_tree import Module, modules

IMPORT_SECONDS = 0.2
HEAVY = {"torch", "transformers", "tokenizers", "numpy", "asyncio", "uvloop", "multiprocessing"}


def python(code: str, folder: Path) -> str:
    """What `code` prints, run by this interpreter in another folder."""
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded_after(names: list[str], folder: Path) -> set[str]:
    """Top-level modules in memory after importing these."""
    code = (
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    loaded = json.loads(python(code, folder))
    assert "ringpost" in loaded
    return set(loaded)


def importable(module: Module) -> bool:
    return module.path.name not in {"__main__.py", "main.py"}


def members(package: str) -> list[str]:
    return [
        "ringpost." + name for name, module in modules().items() if f"{name}.".startswith(package + ".") and importable(module)
    ]


def test_importing_ringpost_is_light(tmp_path: Path) -> None:
    assert not HEAVY & loaded_after(["ringpost"], tmp_path)


def test_the_version_is_looked_up_when_it_is_asked_for(tmp_path: Path) -> None:
    code = "import sys, ringpost; print('importlib.metadata' in sys.modules, ringpost.__version__)"
    assert python(code, tmp_path) == f"False {version('ringpost')}"


def test_importing_ringpost_is_quick(tmp_path: Path) -> None:
    code = "import time; start = time.perf_counter(); import ringpost; print(time.perf_counter() - start)"
    assert min(float(python(code, tmp_path)) for _ in range(5)) < IMPORT_SECONDS


@pytest.mark.parametrize(
    ("package", "absent"),
    [
        ("ipc.messages", {"torch", "transformers", "tokenizers", "numpy", "asyncio"}),
        ("ipc", {"torch", "transformers", "tokenizers"}),
        ("sched", {"torch", "transformers", "tokenizers", "numpy", "asyncio"}),
        ("kernels", {"transformers"}),
        ("model_runner", {"transformers"}),
        ("model_runner.checkpoint", {"torch", "transformers"}),
        ("model_runner.processor_loading", {"torch", "transformers", "numpy", "asyncio"}),
        ("actors.frontend", {"torch"}),
        ("actors.engine_core", {"torch", "transformers", "tokenizers"}),
        ("actors.worker", {"transformers", "tokenizers"}),
    ],
)
def test_a_package_loads_only_what_it_needs(package: str, absent: set[str], tmp_path: Path) -> None:
    assert not absent & loaded_after(members(package), tmp_path)


def test_the_command_line_loads_no_model_code(tmp_path: Path) -> None:
    assert not {"torch", "transformers"} & loaded_after(["ringpost.actors.cli"], tmp_path)


def test_names_of_rooms_hide_nothing(tmp_path: Path) -> None:
    code = "import sched, importlib.util; print(hasattr(sched, 'scheduler'), importlib.util.find_spec('kernels'))"
    assert python(code, tmp_path) == "True None"


def test_names_of_rooms_hide_nothing_here() -> None:
    import_path = [str(Path(entry or ".").resolve()) for entry in sys.path]
    assert str(modules()[""].path.parent) not in import_path
