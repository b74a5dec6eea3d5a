"""The command line: `ringpost COMMAND`. What goes wrong is one line on standard error; exit code 2 for a mistake
of the user's, 1 for a failure of the engine's."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from ..ipc.messages.sampling import SamplingParams
from .complete import complete
from .config import add_engine_arguments, engine_config, engine_options
from .errors import EngineError, EngineStartError
from .logs import configure_logging

_SAMPLING = {
    "max_tokens": (int, "tokens of the answer (default 128)"),
    "temperature": (float, "0 is greedy (default 1)"),
    "top_p": (float, "keep the likeliest tokens up to this probability (default 1: all)"),
    "top_k": (int, "keep this many of the likeliest tokens (default 0: all)"),
    "min_p": (float, "keep tokens at least this likely relative to the likeliest (default 0: all)"),
}
EXIT_MISTAKE, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_MISTAKE, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ringpost", description="An LLM inference engine of asyncio actors.")
    parser.add_argument("--version", action="version", version=f"ringpost {version('ringpost')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    command = commands.add_parser("complete", help="answer one prompt, streamed to the terminal")
    command.add_argument("prompt", metavar="PROMPT", help="text to go on from")
    command.add_argument("--model", default="smollm2", help="alias, directory, .gguf file or hub id (default: %(default)s)")
    command.add_argument("--chat", action="store_true", help="put the prompt to the model as a user's message")
    command.add_argument("--stats", action="store_true", help="print the processes, time to first token and tokens/s")
    sampling = command.add_argument_group("sampling")
    for name, (kind, text) in _SAMPLING.items():
        flag = "--" + name.replace("_", "-")
        sampling.add_argument(flag, type=kind, metavar="VALUE", default=argparse.SUPPRESS, help=text)
    sampling.add_argument("--ignore-eos", action="store_true", default=argparse.SUPPRESS, help="go on after the model's end")
    add_engine_arguments(command)
    command.set_defaults(max_tokens=128)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        params = SamplingParams(
            **{name: getattr(arguments, name) for name in (*_SAMPLING, "ignore_eos") if hasattr(arguments, name)}
        )
        config = engine_config(**engine_options(arguments))
        configure_logging("frontend0", config.runtime)
        asyncio.run(complete(config, arguments.prompt, params, chat=arguments.chat, stats=arguments.stats))
    except (ValueError, EngineError) as error:
        line = " ".join(str(error).splitlines())
        print(f"ringpost {arguments.command}: {line}", file=sys.stderr)  # noqa: T201
        return EXIT_MISTAKE if isinstance(error, ValueError | EngineStartError) else EXIT_FAILED
    except BrokenPipeError:  # whoever read our output has left
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0
