"""`make demo` and `make serve`, in the environment that runs the tests: nothing is installed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import LIMIT
from source_tree import ROOT
from tiny_checkpoint import write_tiny_llama

VENV = Path(sys.executable).parents[1]
SERVED = "Ringpost serves "


@contextmanager
def making(*words: str) -> Iterator["subprocess.Popen[str]"]:
    """`make` with these words, in a process group of its own as at a terminal."""
    command = ["make", f"VENV={VENV}", "-o", f"{VENV}/.installed", *words]
    environment = os.environ | {"MAKEFLAGS": "", "MAKELEVEL": "0", "MFLAGS": "", "PYTHONUNBUFFERED": "1"}
    environment.pop("RINGPOST_API_KEY", None)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        process_group=0,
    ) as process:
        watchdog = threading.Timer(LIMIT, os.killpg, (process.pid, signal.SIGKILL))
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            watchdog.join()


def wait_for_server(process: "subprocess.Popen[str]") -> str:
    """The server's line, once it is there."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(SERVED):
            return line
    raise AssertionError(f"no server: {process.communicate()}")


def test_the_demo_shows_the_server_and_its_answer(no_leaks: None, smollm2: str) -> None:
    with making("demo", 'PROMPT=What is the capital of "France"? `Just` the name.') as process:
        assert f"{SERVED}smollm2 at http://127.0.0.1:" in wait_for_server(process)
        out, errors = process.communicate()
    assert process.returncode == 0, errors
    *_, answer, advice = out.splitlines()
    assert "Paris" in answer
    assert advice.startswith("== next: make serve")


def test_a_demo_whose_server_does_not_start(no_leaks: None, smollm2: str) -> None:
    with making("demo", "SERVE_ARGS=--max-model-len 100000") as process:
        out, errors = process.communicate()
    assert process.returncode == 2
    assert SERVED not in out
    assert "ringpost serve: max_model_len must be at most 8192" in errors


def test_a_demo_whose_chat_fails(no_leaks: None, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    with making("demo", f"SERVE_ARGS=--model {model} --num-threads 1 --api-key secret") as process:
        out, errors = process.communicate()
    assert process.returncode == 2
    assert SERVED in out
    assert "API key" in errors


@pytest.mark.parametrize("to_all", [True, False], ids=["Ctrl-C", "SIGTERM to make"])
def test_an_interrupted_demo_leaves_nothing(no_leaks: None, tmp_path: Path, to_all: bool) -> None:
    model = write_tiny_llama(tmp_path / "model")
    with making("demo", f"SERVE_ARGS=--model {model} --num-threads 1") as process:
        wait_for_server(process)
        if to_all:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.terminate()
        process.communicate()
    assert process.returncode != 0


def test_serve_is_the_server_until_it_is_interrupted(no_leaks: None, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    with making("serve", f"SERVE_ARGS=--model {model} --num-threads 1 --port 0") as process:
        assert str(model) in wait_for_server(process)
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate()
    assert out == ""
