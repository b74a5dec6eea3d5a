"""Entry of the engine core process."""

from ..boot import run_actor
from .main import main

run_actor(main)
