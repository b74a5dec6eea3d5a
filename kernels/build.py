"""Compiles the C kernels with the system's compiler, once for these sources, flags and this CPU."""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "cpu" / "csrc"
# psabi: how vectors wider than the registers are passed differs between releases, but the library is built by one.
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-Wl,-Bsymbolic", "-Wno-psabi")
TIMEOUT = 300.0  # seconds; a few are usual


class BuildError(RuntimeError):
    """There is no library, and why."""


def build(cache: Path | None = None, compiler: str | None = None) -> Path:
    """The compiled library, from the cache if it is there. Several processes may do this at once.

    The cache is `$XDG_CACHE_HOME/ringpost/kernels`; the compiler is `$CC`, else cc; the instructions are all that this CPU has,
    or those of `$RINGPOST_KERNELS_MARCH`, a value of the compiler's `-march`. Raises BuildError when there is no compiler, when
    it fails, and when the cache is not this user's own.
    """
    flags = (*FLAGS, f"-march={os.environ.get('RINGPOST_KERNELS_MARCH') or 'native'}")
    name, *options = shlex.split(compiler or os.environ.get("CC") or "cc") or ["cc"]
    found = shutil.which(name)
    if found is None:
        raise BuildError(f"the C compiler {name!r} is not installed")
    try:
        folder = cache or _cache()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_own(folder)
        library = folder / f"{_key(Path(found).resolve(), (*options, *flags))}.so"
        if not library.exists():
            _compile([found, *options, *flags], library)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        if isinstance(error, BuildError):
            raise
        raise BuildError(f"the kernels cannot be compiled: {error}") from error
    return library


def _check_own(folder: Path) -> None:
    """What is loaded from a folder that others write to is theirs."""
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise BuildError(f"{folder} belongs to another user, or others may write to it")


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ringpost" / "kernels"


def _key(compiler: Path, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    status = compiler.stat()
    digest.update(f"{flags} {compiler} {status.st_size} {status.st_mtime_ns} {_cpu()}".encode())
    return digest.hexdigest()[:32]


def _cpu() -> str:
    """What tells CPUs apart: the line of their instructions, and of their kind for the compiler's tuning."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    wanted = ("flags", "Features", "vendor_id", "cpu family", "model\t", "CPU implementer", "CPU part")
    return "\n".join(line for line in lines if line.startswith(wanted))


def _compile(command: list[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        command = [*command, "-o", str(made), *map(str, sorted(SOURCES.glob("*.c"))), "-lpthread", "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            raise BuildError(f"{command[0]} failed: {next((line for line in lines if 'error' in line), lines[0])[:200]}")
        with made.open("rb") as file:
            os.fsync(file.fileno())  # or a power cut may leave the name of an empty file
        made.replace(library)  # another process may have been faster, with the same content
