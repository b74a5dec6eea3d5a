"""Post-mortems are written where nobody waits for them, and nothing that goes wrong with one stops anything."""

import threading
from pathlib import Path
from typing import Any

import pytest

from ringpost.actors import postmortem_writer
from ringpost.actors.logs import logger
from ringpost.actors.postmortem_writer import PostmortemWriter
from ringpost.ipc.messages.config import RuntimeConfig

pytestmark = pytest.mark.asyncio


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(logger, "error", lambda text, *values: lines.append(text % values))
    return lines


class Snapshot:
    """Stands for what was seen of an actor."""

    def __init__(self, error: Exception | None = None, wait: threading.Event | None = None) -> None:
        self.error = error
        self.wait = wait

    def write(self, directory: Path, *, prompts: bool) -> Path:
        if self.wait is not None:
            self.wait.wait()
        if self.error is not None:
            raise self.error
        return directory / f"written-{prompts}"


async def test_the_log_names_the_file(said: list[str], tmp_path: Path) -> None:
    writer = PostmortemWriter(RuntimeConfig(postmortem_dir=str(tmp_path), postmortem_prompts=True))
    snapshot: Any = Snapshot()
    writer.write("core0", snapshot)
    assert not said
    await writer.finish()
    assert said == [f"the post-mortem of core0 is in {tmp_path / 'written-True'}"]


@pytest.mark.parametrize("error", [OSError("disk full"), RuntimeError("can't start new thread")])
async def test_whatever_goes_wrong_is_logged(said: list[str], tmp_path: Path, error: Exception) -> None:
    writer = PostmortemWriter(RuntimeConfig(postmortem_dir=str(tmp_path)))
    snapshot: Any = Snapshot(error)
    writer.write("core0", snapshot)
    await writer.finish()
    assert said == [f"no post-mortem of core0 can be written: {type(error).__name__}: {error}"]


async def test_a_disk_that_hangs_is_given_up(said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postmortem_writer, "WRITE_SECONDS", 0.05)
    writer = PostmortemWriter(RuntimeConfig(postmortem_dir=str(tmp_path)))
    event = threading.Event()
    snapshot: Any = Snapshot(wait=event)
    writer.write("core0", snapshot)
    await writer.finish()
    event.set()
    assert said == ["no post-mortem of core0 can be written: TimeoutError: "]


async def test_without_a_directory_nothing_is_written(said: list[str]) -> None:
    writer = PostmortemWriter(RuntimeConfig())
    snapshot: Any = Snapshot()
    writer.write("core0", snapshot)
    await writer.finish()
    assert not said
