"""The progress bar of a long load: on a terminal, and only there."""

import os

import pytest
from terminals import written

from ringpost.actors.worker.progress import LoadingBar


def shown(quiet_seconds: float) -> str:
    """What a load of four layers writes to a terminal."""

    def write(descriptor: int) -> None:
        with LoadingBar(os.dup(descriptor), quiet_seconds=quiet_seconds) as bar:
            for done in range(1, 5):
                bar(done, 4)

    return written(write)


def test_a_long_load_shows_how_far_it_is(no_leaks: None) -> None:
    text = shown(quiet_seconds=0)
    assert "Loading weights" in text
    assert "100 %" in text


def test_a_quick_load_shows_nothing(no_leaks: None) -> None:
    assert shown(quiet_seconds=1000) == "end"


def test_without_a_terminal_nothing_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with LoadingBar(None, quiet_seconds=0) as bar:
        bar(1, 1)
    assert capfd.readouterr() == ("", "")
