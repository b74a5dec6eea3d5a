"""Prompts of the tests on the demo model, as token ids."""

import random

_FRANCE = [504, 3575, 282, 4649, 314]  # "The capital of France is"
_LENGTHS = (1, 16, 300, 65, 2, 17, 100, 5, 15, 31, 32, 33, 64, 150, 200, 255)


def fidelity_prompts(count: int) -> list[list[int]]:
    """The first of 16 prompts of 1 to 300 tokens, around the borders of blocks and steps; most are random words."""
    chooser = random.Random(7)
    prompts = [(_FRANCE + [chooser.randrange(1000, 48000) for _ in range(length)])[-length:] for length in _LENGTHS]
    return prompts[:count]
