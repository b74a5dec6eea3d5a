"""Compiles the C kernels with the system's compiler, once for these sources, flags and this CPU."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "cpu" / "csrc"
# psabi: how vectors wider than the registers are passed differs between releases, but the library is built by one.
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-Wno-psabi")
TIMEOUT = 300.0  # seconds; a few are usual


class BuildError(RuntimeError):
    """There is no library, and why."""


def build(cache: Path | None = None, compiler: str | None = None) -> Path:
    """The compiled library, from the cache if it is there. Several processes may do this at once.

    The cache is `$XDG_CACHE_HOME/ringpost/kernels`; the compiler is `$CC`, else cc; the instructions are all that this CPU has,
    or those of `$RINGPOST_KERNELS_MARCH`, a value of the compiler's `-march`. Raises BuildError when there is no compiler, or
    when it fails.
    """
    flags = (*FLAGS, f"-march={os.environ.get('RINGPOST_KERNELS_MARCH') or 'native'}")
    name = compiler or os.environ.get("CC") or "cc"
    found = shutil.which(name)
    if found is None:
        raise BuildError(f"the C compiler {name!r} is not installed")
    folder = cache or _cache()
    library = folder / f"{_key(Path(found).resolve(), flags)}.so"
    if not library.exists():
        _compile(found, flags, library)
    return library


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


def _compile(compiler: str, flags: tuple[str, ...], library: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            command = [compiler, *flags, "-o", str(made), *map(str, sorted(SOURCES.glob("*.c"))), "-lpthread", "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
            if done.returncode:
                raise BuildError(f"{compiler} failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[0][:200]}")
            made.replace(library)  # another process may have been faster, with the same content
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the kernels cannot be compiled: {error}") from error
