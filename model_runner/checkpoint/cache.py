"""The cache directory of prepared models: each is made once, by one process, and is either whole or absent."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import CheckpointError

CONVERSION = 2  # to be raised when a conversion changes what it writes: older results are then left alone


def cache_root() -> Path:
    """$RINGPOST_CACHE, else $XDG_CACHE_HOME/ringpost, else ~/.cache/ringpost."""
    if chosen := os.environ.get("RINGPOST_CACHE"):
        return Path(chosen).expanduser().absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "ringpost"
    return Path("~/.cache/ringpost").expanduser()


def cached_directory(name: str, fill: Callable[[Path, Path], None]) -> Path:
    """The directory `name` of the model cache, made by `fill` if it is not there yet.

    `fill(directory, scratch)` gets the empty directory to fill and one that is thrown away afterwards, both on the
    cache's file system. Other processes that want the same name wait meanwhile. When `fill` raises, nothing of its work
    stays. Raises CheckpointError where the cache cannot be written.
    """
    models = cache_root() / f"models-{CONVERSION}"
    target = models / name
    try:
        if target.is_dir():
            return target
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f".{name}.lock"):
            if not target.is_dir():
                _make(target, fill)
    except OSError as error:
        raise CheckpointError(
            f"cannot prepare {target}: {error.strerror or error}; RINGPOST_CACHE may name another cache directory"
        ) from error
    return target


def _make(target: Path, fill: Callable[[Path, Path], None]) -> None:
    """Fill a temporary directory and rename it to `target`; the caller holds the lock of that name."""
    prefix = f".{target.name}.tmp-"
    for leftover in target.parent.glob(f"{prefix}*"):  # of a process that was killed: the lock says it is gone
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as temporary:
        directory, scratch = Path(temporary, "model"), Path(temporary, "scratch")
        directory.mkdir()
        scratch.mkdir()
        fill(directory, scratch)
        try:
            directory.rename(target)
        except OSError:
            if not target.is_dir():  # else a process that the lock does not reach was first, and its work is as good
                raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, which stays: removing it would let two processes lock different files."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
