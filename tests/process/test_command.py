"""`ringpost complete` as a user runs it: its answers, and what it says when something is wrong."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import COMMAND, LIMIT, run_ringpost
from tiny_checkpoint import write_tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


def test_it_answers_and_tells_about_its_processes(no_leaks: None, smollm2: str) -> None:
    done = run_ringpost("complete", "--temperature", "0", "--max-tokens", "8", "--stats", "The capital of France is")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" Paris")
    for word in ("frontend0", "core0", "worker0.0", "tokens/s", "first of"):
        assert word in done.stderr


@pytest.mark.long
def test_the_engine_seed_repeats_an_answer(no_leaks: None, tiny: Path) -> None:
    command = ("complete", "--model", str(tiny), "--seed", "5", "--max-tokens", "20", "ab")
    first, second = run_ringpost(*command), run_ringpost(*command)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout == second.stdout != "\n"


def test_logs_as_json(no_leaks: None, tiny: Path) -> None:
    done = run_ringpost(
        "complete", "--model", str(tiny), "--log-format", "json", "--log-level", "debug", "--max-tokens", "1", "ab"
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["actor"] for line in lines} >= {"frontend0", "worker0.0"}
    assert all(line.keys() >= {"time", "level", "actor", "pid", "message"} for line in lines)


def truncate_weights(model: Path) -> None:
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)


def change_config(**fields: object) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        file = model / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated weights": (truncate_weights, "model.safetensors"),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), "safetensors"),
    "no config": (lambda model: (model / "config.json").unlink(), "config.json"),
    "broken config": (lambda model: (model / "config.json").write_text("{"), "config.json"),
    "unknown architecture": (change_config(architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel"),
    "shape mismatch": (change_config(intermediate_size=100), "mlp"),
    "no tokenizer": (lambda model: (model / "tokenizer.json").unlink(), "tokenizer.json"),
    "broken tokenizer": (lambda model: (model / "tokenizer.json").write_text("{}"), "tokenizer.json"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_model_is_one_line(no_leaks: None, tmp_path: Path, fault: str) -> None:
    model = write_tiny_llama(tmp_path / "model")
    spoil, named = BROKEN[fault]
    spoil(model)
    done = run_ringpost("complete", "--model", str(model), "hello")
    assert_one_line(done, named)


MISTAKES = {
    "unknown model": (["--model", "no-such-model"], "no-such-model"),
    "unknown option": (["--max-num-sequences", "3"], "--max-num-sequences"),
    "option out of range": (["--max-num-seqs", "0"], "max_num_seqs"),
    "option of a wrong type": (["--block-size", "many"], "block_size"),
    "temperature out of range": (["--temperature", "9"], "temperature"),
    "context too long": (["--max-model-len", "100000"], "max_model_len"),
    "no memory for one block": (["--kv-cache-memory-bytes", "10"], "raise kv_cache_memory_bytes to at least"),
    "no memory for one request": (["--kv-cache-memory-bytes", str(2**24)], "lower max_model_len to at most"),
    "two sizes of memory": (
        ["--kv-cache-memory-bytes", str(2**30), "--kv-cache-memory-fraction", "0.5"],
        "kv_cache_memory_bytes=1073741824 and kv_cache_memory_fraction=0.5",
    ),
    "more memory than there is": (["--kv-cache-memory-bytes", str(2**50)], "bytes of memory are free"),
    "mailboxes of an odd size": (["--mailbox-bytes", "100000"], "mailbox_bytes must be a power of two"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(no_leaks: None, smollm2: str, mistake: str) -> None:
    arguments, named = MISTAKES[mistake]
    assert_one_line(run_ringpost("complete", *arguments, "hello"), named)


def test_a_bad_prompt_is_one_line(no_leaks: None, tiny: Path) -> None:
    assert_one_line(run_ringpost("complete", "--model", str(tiny), ""), "prompt")


def assert_one_line(done: subprocess.CompletedProcess[str], named: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupted_it_stops_everything(no_leaks: None, tiny: Path) -> None:
    command = [COMMAND, "complete", "--model", str(tiny), "--max-tokens", "500", "--ignore-eos", "ab"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert errors == b""
