"""Prompts of the tests on the demo model, as token ids."""

import random

_FRANCE = [504, 3575, 282, 4649, 314]  # "The capital of France is"
_LENGTHS = (1, 2, 5, 15, 16, 17, 31, 32, 33, 64, 65, 100, 150, 200, 255, 300)


def fidelity_prompts() -> list[list[int]]:
    """16 prompts of 1 to 300 tokens, around the borders of blocks and steps: random words behind a sensible beginning."""
    chooser = random.Random(7)
    return [(_FRANCE + [chooser.randrange(1000, 48000) for _ in range(length)])[-length:] for length in _LENGTHS]
