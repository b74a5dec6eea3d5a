"""The file in which a post-mortem lies: its form, and how it is written, kept and read."""

import os
import re
import tempfile
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..ipc.ring_view import SideReading

FORMAT = 1  # to be raised when a reader of older files, or of newer ones, would misunderstand
KEPT = 20  # files in a directory
_NAME = re.compile(r"\d{8}-\d{6}-[\w.]+-\d+-\d+\.json")


class MessagePart(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a mailbox still held."""

    type: str  # empty where it could not be had
    unread: bool
    epoch: int
    sequence: int
    size: int  # bytes of it in the mailbox
    fields: dict[str, Any] = {}
    problem: str = ""  # why it could not be had


class MailboxPart(msgspec.Struct, frozen=True, kw_only=True):
    """A mailbox of the process."""

    name: str
    direction: str  # seen from the process: in, out
    capacity: int  # bytes
    unread: int  # messages: of one that it reads, by the process; of one that it writes, by the slowest reader
    writer: SideReading
    readers: list[SideReading]
    messages: list[MessagePart]  # the last ones, oldest first


class Postmortem(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a process that died."""

    format: int
    time: str  # when it was found dead, UTC
    clock: float  # the same in CLOCK_MONOTONIC, as the times in the status
    ringpost: str  # version
    actor: str
    kind: str
    pid: int
    epoch: int
    failure: dict[str, str]  # kind, message, traceback
    status: dict[str, Any] | None  # fields of the ActorStatus that it posted last
    tail: list[str]  # lines that it printed last
    prompts: bool  # whether what users and the model said was left in
    mailboxes: list[MailboxPart]


class _Head(msgspec.Struct, frozen=True):
    format: int


def write_postmortem(postmortem: Postmortem, directory: Path) -> Path:
    """Write the file, whole or not at all, for the eyes of this user only; returns its path. Of all such files KEPT stay.

    Makes the directory if it is missing. Raises OSError.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    moment = datetime.fromisoformat(postmortem.time)
    path = directory / f"{moment:%Y%m%d-%H%M%S}-{postmortem.actor}-{postmortem.pid}-{postmortem.epoch}.json"
    descriptor, temporary = tempfile.mkstemp(prefix=".postmortem-", dir=directory)  # of mode 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(postmortem))
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    for old in [other for other in _postmortems(directory) if other != path][: 1 - KEPT]:
        with suppress(OSError):  # another process has removed it, or it is not ours
            old.unlink()
    return path


def _postmortems(directory: Path) -> list[Path]:
    """The files here that bear a name of ours, oldest first."""
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))


def read_postmortem(path: Path) -> Postmortem:
    """The post-mortem in a file, or the newest one in a directory. Raises ValueError, saying what is wrong with it."""
    try:
        if path.is_dir():
            found = _postmortems(path)
            if not found:
                raise ValueError(f"{path} holds no post-mortem")
            path = found[-1]
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        head = msgspec.json.decode(content, type=_Head)
        if head.format > FORMAT:
            raise ValueError(f"{path} was written by a newer version of Ringpost: format {head.format}, known up to {FORMAT}")
        return msgspec.json.decode(content, type=Postmortem)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path} is no post-mortem: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
