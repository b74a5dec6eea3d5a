"""Entry of the engine core process."""

from ..boot import run_actor
from .actor import main

run_actor(main)
