"""Where the time of a call goes, function by function."""

from collections.abc import Callable
from cProfile import Profile
from pathlib import Path
from types import CodeType

import msgspec

SHOWN = 10
_CLOCK = "<built-in method time.perf_counter_ns>"


class HotSpot(msgspec.Struct, frozen=True, kw_only=True):
    """One function's own time, without what it calls. The profiler's cost is in it, so only the order is telling."""

    function: str
    calls: int
    share: float  # of the time of all functions together, from 0 to 1


def hot_spots(call: Callable[[], object], *, leave_out: str) -> list[HotSpot]:
    """The functions in which `call` spends most of its time, but for those of the file `leave_out` and the clock."""
    profile = Profile()
    profile.runcall(call)
    entries = [entry for entry in profile.getstats() if not _is_left_out(entry.code, leave_out)]
    total = sum(entry.inlinetime for entry in entries)
    entries.sort(key=lambda entry: entry.inlinetime, reverse=True)
    return [
        HotSpot(function=_name(entry.code), calls=entry.callcount, share=entry.inlinetime / total) for entry in entries[:SHOWN]
    ]


def _is_left_out(code: CodeType | str, file: str) -> bool:
    return code == _CLOCK or "_lsprof.Profiler" in code if isinstance(code, str) else code.co_filename == file


def _name(code: CodeType | str) -> str:
    return code if isinstance(code, str) else f"{Path(code.co_filename).stem}: {code.co_qualname}"
