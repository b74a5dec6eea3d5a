"""Entry of the worker process."""

import os
import time

_started = time.monotonic()
# OpenMP's threads spin at each barrier for milliseconds by default, and lose tenfold as soon as another process wants one of
# their cores. A few microseconds catch nearly every barrier. Read when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

from ..boot import Boot, Control, loading, run_actor  # noqa: E402


async def _main(boot: Boot, control: Control) -> None:
    """The worker's body. Loading torch takes seconds: first our Hello goes out and the supervisor's end is watched."""
    with loading():
        from .main import main  # noqa: PLC0415

    await main(boot, control)


run_actor(_main, _started)
