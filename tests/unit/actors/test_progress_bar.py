"""The progress of an offline batch: at a terminal, where it is wanted, and only there."""

import sys

import pytest
from terminals import written

from ringpost.actors.frontend.progress_bar import progress_of


def shown(*, wanted: bool) -> str:
    """What a batch of four prompts writes to a terminal."""

    def write(descriptor: int) -> None:
        with pytest.MonkeyPatch.context() as patch, open(descriptor, "w", encoding="utf-8", closefd=False) as terminal:
            patch.setattr(sys, "stderr", terminal)
            patch.setenv("TERM", "xterm")
            patch.setenv("COLUMNS", "120")
            with progress_of(4, iter(range(0, 1000, 100)).__next__, shown=wanted) as done:
                for _ in range(4):
                    done()

    return written(write)


def test_it_shows_prompts_and_speed(no_leaks: None) -> None:
    text = shown(wanted=True)
    assert "prompts" in text
    assert "4/4" in text
    assert "tokens/s" in text


def test_it_shows_nothing_to_who_wants_none(no_leaks: None) -> None:
    assert shown(wanted=False) == "end"


def test_without_a_terminal_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_of(1, lambda: 0, shown=True) as done:
        done()
    assert capsys.readouterr() == ("", "")
