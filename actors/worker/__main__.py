"""Entry of the worker process."""

import os
import time

_started = time.monotonic()
# OpenMP's threads spin at each barrier for milliseconds by default, and lose tenfold as soon as another process wants one of
# their cores. A few microseconds catch nearly every barrier. Read when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

from ..boot import run_actor  # noqa: E402
from .actor import main_since  # noqa: E402

run_actor(main_since(_started))
