"""Sampling parameters as options of a command."""

import argparse

from ..ipc.messages.sampling import SamplingParams

_OPTIONS = {
    "max_tokens": (int, "tokens of an answer (default 128)"),
    "temperature": (float, "0 is greedy (default 1)"),
    "top_p": (float, "keep the likeliest tokens up to this probability (default 1: all)"),
    "top_k": (int, "keep this many of the likeliest tokens (default 0: all)"),
    "min_p": (float, "keep tokens at least this likely relative to the likeliest (default 0: all)"),
}


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to a command's parser."""
    sampling = parser.add_argument_group("sampling")
    for name, (kind, text) in _OPTIONS.items():
        flag = "--" + name.replace("_", "-")
        sampling.add_argument(flag, type=kind, metavar="VALUE", default=argparse.SUPPRESS, help=text)
    sampling.add_argument("--ignore-eos", action="store_true", default=argparse.SUPPRESS, help="go on after the model's end")
    parser.set_defaults(max_tokens=128)


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """The parameters a command was given. Raises ValueError for a value out of range."""
    return SamplingParams(**{name: getattr(arguments, name) for name in (*_OPTIONS, "ignore_eos") if hasattr(arguments, name)})
