"""Sampling parameters as options of a command."""

import argparse
from typing import Any

from ..ipc.messages.sampling import SamplingParams

_OPTIONS = {
    "max_tokens": (int, "tokens of an answer"),
    "temperature": (float, "0 is greedy (default 1)"),
    "top_p": (float, "keep the likeliest tokens up to this probability (default 1: all)"),
    "top_k": (int, "keep this many of the likeliest tokens (default 0: all)"),
    "min_p": (float, "keep tokens at least this likely relative to the likeliest (default 0: all)"),
}


def add_sampling_arguments(parser: argparse.ArgumentParser, *, max_tokens: int | None) -> None:
    """Add the options to a command's parser. `max_tokens` is the default; None: as many as fit."""
    sampling = parser.add_argument_group("sampling")
    for name, (kind, text) in _OPTIONS.items():
        flag = "--" + name.replace("_", "-")
        if name == "max_tokens":
            text += f" (default {max_tokens or 'as many as fit'})"
        sampling.add_argument(flag, type=kind, metavar="VALUE", default=argparse.SUPPRESS, help=text)
    sampling.add_argument("--ignore-eos", action="store_true", default=argparse.SUPPRESS, help="go on after the model's end")
    parser.set_defaults(max_tokens=max_tokens)


def sampling_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options a command was given, and the default of `max_tokens`."""
    return {name: getattr(arguments, name) for name in (*_OPTIONS, "ignore_eos") if hasattr(arguments, name)}


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """The parameters a command was given. Raises ValueError for a value out of range."""
    return SamplingParams(**sampling_options(arguments))
