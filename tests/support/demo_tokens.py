"""Tokens of the demo model, and request fields that make it say exactly what a test expects."""

from typing import Any

VOCABULARY = 49152
EOS = 2  # <|im_end|>
NEWLINE = 198
DEF = 33203  # the text "DEF"
HALF_EMOJI = 10813  # F0 9F, the first half of a character
FRANCE = "The capital of France is"
FRANCE_IDS = [504, 3575, 282, 4649, 314]


def force(token: int) -> dict[str, Any]:
    """Every token of the answer is this one."""
    return {"temperature": 0, "logit_bias": {str(token): 100}}


def then_eos(token: int, count: int) -> dict[str, Any]:
    """The answer is this token so many times, and then ends by itself."""
    return {"temperature": 0, "min_tokens": count, "logit_bias": {str(token): 50, str(EOS): 100}}


def user(content: object) -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [{"role": "user", "content": content}]
