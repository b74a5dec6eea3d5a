"""Log lines of every process: time, level, actor, rank, pid, message; as text or JSON, on standard error."""

import logging
import os
import sys
from datetime import UTC, datetime

import msgspec

from ..ipc.messages.config import RuntimeConfig

logger = logging.getLogger("ringpost")


class _Formatter(logging.Formatter):
    def __init__(self, actor: str, rank: int | None, *, as_json: bool) -> None:
        super().__init__()
        self._actor = actor
        self._rank = rank
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        if self._as_json:
            line = {"time": time, "level": record.levelname, "actor": self._actor, "rank": self._rank, "pid": os.getpid()}
            return msgspec.json.encode(line | {"message": message}).decode()
        rank = "" if self._rank is None else f" rank {self._rank}"
        return f"{time} {record.levelname:<7} {self._actor}{rank} pid {os.getpid()}: {message}"


def configure_logging(actor: str, config: RuntimeConfig, rank: int | None = None) -> None:
    """Send this process's `ringpost` log to standard error. For our own programs only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(actor, rank, as_json=config.log_format == "json"))
    logger.handlers[:] = [handler]
    logger.setLevel(config.log_level.upper())
    logger.propagate = False
