"""How much memory this process may still take, and how it keeps what it has."""

import ctypes
from pathlib import Path

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc refuses more
_KEPT_BYTES = 1 << 30


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes free for new allocations: the machine's, or less where a control group sets a limit."""
    free = [_machine_free(proc)]
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            free += _limits(cgroups, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            free += _limits(cgroups / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return max(min(free), 0)


def keep_freed_memory() -> None:
    """Let the allocator of this process reuse freed memory instead of handing it back to the kernel.

    Every step allocates and frees the same megabytes of activations. By default those go back each time and return as
    page faults, which cost several times what is computed on them. Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _machine_free(proc: Path) -> int:
    fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _limits(root: Path, path: str, limit_file: str, usage_file: str) -> list[int]:
    """What is left under the limit of the group and of each group around it."""
    left = []
    group = root / path.strip("/")
    while True:
        limit, usage = _text(group / limit_file).strip(), _text(group / usage_file).strip()
        if limit.isdigit() and usage.isdigit():
            left.append(int(limit) - int(usage) + _inactive_file(group))
        if group == root or root not in group.parents:
            return left
        group = group.parent


def _inactive_file(group: Path) -> int:
    """Page cache the kernel would drop first: it counts as used but is free for the asking."""
    for line in _text(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
