"""Log lines of every process: time, level, actor, pid, message; as text or JSON, on standard error."""

import logging
import os
import sys
from datetime import UTC, datetime

import msgspec

from ..ipc.messages.config import RuntimeConfig

logger = logging.getLogger("ringpost")


class _Formatter(logging.Formatter):
    def __init__(self, actor: str, *, as_json: bool) -> None:
        super().__init__()
        self._actor = actor
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        if self._as_json:
            line = {
                "time": time,
                "level": record.levelname,
                "actor": self._actor,
                "pid": os.getpid(),
                "message": message,
            }
            return msgspec.json.encode(line).decode()
        return f"{time} {record.levelname:<7} {self._actor} {os.getpid()} {message}"


def configure_logging(actor: str, config: RuntimeConfig) -> None:
    """Send this process's `ringpost` log to standard error. For our own programs only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(actor, as_json=config.log_format == "json"))
    logger.handlers[:] = [handler]
    logger.setLevel(config.log_level.upper())
    logger.propagate = False
