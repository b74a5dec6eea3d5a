"""Files of post-mortems: how they are named, kept and read, and where they lie."""

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from postmortems import POSTMORTEM

from ringpost.actors import config as config_module
from ringpost.actors.cli import main
from ringpost.actors.config import engine_config, resolve_config
from ringpost.actors.postmortem_file import FORMAT, KEPT, read_postmortem, write_postmortem
from ringpost.ipc.messages.config import Checkpoint

NAME = "20261130-102530-worker0.0-4711-2.json"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_for_this_user_in_a_directory_for_this_user(tmp_path: Path) -> None:
    directory = tmp_path / "some" / "where"
    path = write_postmortem(POSTMORTEM, directory)
    assert path == directory / NAME
    assert (mode(directory), mode(path)) == (0o700, 0o600)
    assert os.listdir(directory) == [NAME]
    assert read_postmortem(path) == POSTMORTEM


def test_a_directory_that_exists_stays_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    write_postmortem(POSTMORTEM, tmp_path)
    assert mode(tmp_path) == 0o755


def test_only_the_newest_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    foreign = ["20200101-000000-notes.json", "20200101-000000-core0-1.json.bak", "a.json", ".postmortem-x"]
    for name in foreign:
        (tmp_path / name).touch()
    names = []
    for day in range(1, KEPT + 6):
        names.append(write_postmortem(replace(POSTMORTEM, time=f"2026-10-{day:02}T00:00:00+00:00"), tmp_path).name)
        assert sorted(os.listdir(tmp_path)) == sorted([*foreign, *names[-KEPT:]])
    # A clock that was set back makes the new file look old.
    early = write_postmortem(replace(POSTMORTEM, time="2020-01-01T00:00:00+00:00"), tmp_path).name
    assert sorted(os.listdir(tmp_path)) == sorted([*foreign, early, *names[-KEPT + 1 :]])


def test_a_file_that_cannot_be_removed_does_no_harm(tmp_path: Path) -> None:
    for day in range(1, KEPT + 1):
        (tmp_path / f"202610{day:02}-000000-core0-1.json").mkdir()
    assert write_postmortem(POSTMORTEM, tmp_path).exists()
    assert len(os.listdir(tmp_path)) == KEPT + 1


def test_what_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaks: None) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="the disk is full"):
        write_postmortem(POSTMORTEM, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            write_postmortem(POSTMORTEM, directory)


def test_the_newest_of_a_directory(tmp_path: Path) -> None:
    for time in ("2026-10-02T00:00:00+00:00", "2026-10-03T00:00:00+00:00", "2026-10-01T00:00:00+00:00"):
        write_postmortem(replace(POSTMORTEM, time=time), tmp_path)
    assert read_postmortem(tmp_path).time == "2026-10-03T00:00:00+00:00"


def changed(**fields: Any) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(POSTMORTEM) | fields)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"[" * 100_000, "is no "),
        (b"[]", "is no post-mortem"),
        (b"{}", "is no post-mortem: .*format"),
        (b'{"format": 1, "name": "something else"}', "is no post-mortem: .*missing required field"),
        (changed(mailboxes=7), "is no post-mortem: .*mailboxes"),
        (changed(format=FORMAT + 1, actor=None), f"written by a newer version of Ringpost: format {FORMAT + 1}"),
    ],
    ids=["missing", "empty", "binary", "deep", "list", "object", "other format", "other type", "newer"],
)
def test_what_is_no_postmortem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, complaint: str
) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"file\.json .*{complaint}"):
        read_postmortem(path)
    assert main(["postmortem", str(path)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith(f"ringpost postmortem: {path} ")


def test_an_empty_directory_holds_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no post-mortem"):
        read_postmortem(tmp_path)


@pytest.mark.parametrize(
    ("chosen", "cache", "expected"),
    [
        (None, "/some/cache", "/some/cache/postmortem"),
        ("/other/place", "/some/cache", "/other/place"),
        ("~/crashes", "/some/cache", "/own/home/crashes"),
        ("crashes", "/some/cache", f"{os.getcwd()}/crashes"),
        (None, "~nobody-of-this-name/cache", None),
    ],
)
def test_where_they_lie(monkeypatch: pytest.MonkeyPatch, chosen: str | None, cache: str, expected: str | None) -> None:
    monkeypatch.setenv("RINGPOST_CACHE", cache)
    monkeypatch.setenv("HOME", "/own/home")
    monkeypatch.setattr(config_module, "resolve_checkpoint", lambda _: Checkpoint(directory="found"))
    config = resolve_config(engine_config(postmortem_dir=chosen, log_level="error"))
    assert config.runtime.postmortem_dir == expected
    assert (config.runtime.log_level, config.checkpoint.directory) == ("error", "found")
