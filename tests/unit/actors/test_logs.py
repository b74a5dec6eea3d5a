"""Log lines, as text and as JSON."""

import json
import logging
import os
import re
from collections.abc import Iterator
from datetime import datetime

import pytest

from ringpost.actors.logs import configure_logging, logger
from ringpost.ipc.messages.config import RuntimeConfig


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate


def test_a_text_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("core0", RuntimeConfig(log_level="info"))
    logger.info("took %d ms", 5)
    line = capsys.readouterr().err
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"
    assert re.fullmatch(rf"{time} INFO    core0 pid {os.getpid()}: took 5 ms\n", line)
    configure_logging("worker0.1", RuntimeConfig(), 1)
    logger.warning("slow")
    assert re.fullmatch(rf"{time} WARNING worker0\.1 rank 1 pid {os.getpid()}: slow\n", capsys.readouterr().err)


def test_a_json_line_is_one_line_whatever_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("worker0.1", RuntimeConfig(log_format="json"), 1)
    try:
        raise OSError('a "quoted"\nreason é')
    except OSError:
        logger.exception("it\nfailed")
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert list(record) == ["time", "level", "actor", "rank", "pid", "message"]
    assert (record["level"], record["actor"], record["rank"], record["pid"]) == ("ERROR", "worker0.1", 1, os.getpid())
    assert record["message"].startswith("it\nfailed\nTraceback")
    assert record["message"].endswith('OSError: a "quoted"\nreason é')
    assert datetime.fromisoformat(record["time"]).tzinfo is not None


def test_the_level_decides_what_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("frontend0", RuntimeConfig(log_level="warning"))
    logger.info("too little")
    logger.warning("enough")
    assert "too little" not in (printed := capsys.readouterr().err)
    assert "enough" in printed


def test_configuring_again_replaces_and_leaves_the_root_logger_alone(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger().handlers[:]
    configure_logging("core0", RuntimeConfig())
    configure_logging("core1", RuntimeConfig())
    logger.error("once")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "core1" in lines[0]
    assert logging.getLogger().handlers == root
