"""The cache of prepared models: whole or absent, made once, whoever else wants it."""

import subprocess
import sys
from pathlib import Path

import pytest

from ringpost.model_runner.checkpoint.cache import cache_root, cached_directory
from ringpost.model_runner.checkpoint.errors import CheckpointError

RACER = """
import os, sys
from pathlib import Path
from ringpost.model_runner.checkpoint.cache import cached_directory

def fill(directory, scratch):
    with open(sys.argv[1], "a") as log:
        log.write(f"{os.getpid()}\\n")
    (directory / "half").write_text("1")
    sum(range(5_000_000))  # long enough for the others to arrive
    (directory / "whole").write_text("2")

print("ready", flush=True)
sys.stdin.read()
directory = cached_directory("model", fill)
print(directory, sorted(os.listdir(directory)))
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RINGPOST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fill(directory: Path, scratch: Path) -> None:
    (scratch / "download").write_text("large")
    (directory / "config.json").write_text("{}")


def visible(root: Path) -> list[str]:
    """Files and directories below the cache, without the lock files, which stay."""
    names = (path.relative_to(root).as_posix() for path in root.rglob("*"))
    return sorted(name.split("/", 1)[1] for name in names if "/" in name and not name.endswith(".lock"))


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("RINGPOST_CACHE", "~/own")
    assert cache_root() == tmp_path / "own"
    monkeypatch.delenv("RINGPOST_CACHE")
    assert cache_root() == Path("/xdg/ringpost")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == tmp_path / ".cache" / "ringpost"


def test_a_directory_is_filled_once_and_nothing_else_stays(root: Path) -> None:
    directory = cached_directory("model", fill)
    assert (directory / "config.json").read_text() == "{}"
    assert visible(root) == ["model", "model/config.json"]

    def again(directory: Path, scratch: Path) -> None:
        raise AssertionError("filled twice")

    assert cached_directory("model", again) == directory


@pytest.mark.parametrize("error", [CheckpointError("no network"), KeyboardInterrupt()])
def test_nothing_stays_of_a_failure(root: Path, error: BaseException) -> None:
    def fail(directory: Path, scratch: Path) -> None:
        fill(directory, scratch)
        raise error

    with pytest.raises(type(error)):
        cached_directory("model", fail)
    assert visible(root) == []
    assert cached_directory("model", fill).is_dir()


def test_what_a_killed_process_left_is_removed(root: Path) -> None:
    directory = cached_directory("model", fill)
    (directory / "config.json").unlink()
    directory.rmdir()
    leftover = directory.parent / ".model.tmp-abc" / "model"
    leftover.mkdir(parents=True)
    (leftover / "half").touch()
    cached_directory("model", fill)
    assert visible(root) == ["model", "model/config.json"]


def test_the_loser_of_a_race_past_the_lock_uses_the_winners(root: Path) -> None:
    def overtaken(directory: Path, scratch: Path) -> None:
        fill(directory, scratch)
        winner = directory.parent.parent / "model"
        winner.mkdir()
        (winner / "winner").touch()

    directory = cached_directory("model", overtaken)
    assert [path.name for path in directory.iterdir()] == ["winner"]
    assert visible(root) == ["model", "model/winner"]


def test_processes_that_race_fill_it_once(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-P", "-c", RACER, str(log)]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.close()
        racer.stdin = None
    outputs = {racer.communicate()[0] for racer in racers}
    assert len(outputs) == 1
    assert outputs.pop().endswith("model ['half', 'whole']\n")
    assert len(log.read_text().splitlines()) == 1
    assert visible(root) == ["model", "model/half", "model/whole"]


def test_a_cache_that_cannot_be_made_is_named(root: Path) -> None:
    root.write_text("a file where the directory should be")
    with pytest.raises(CheckpointError, match=rf"cannot prepare {root}.*/model: .*; RINGPOST_CACHE may name another"):
        cached_directory("model", fill)
