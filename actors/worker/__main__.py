"""Entry of the worker process."""

import time

_started = time.monotonic()

from ..boot import run_actor  # noqa: E402
from .actor import main_since  # noqa: E402

run_actor(main_since(_started))
