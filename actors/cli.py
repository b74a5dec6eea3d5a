"""The command line: `ringpost COMMAND`. What goes wrong is one line on standard error; exit code 2 for a mistake
of the user's, 1 for a failure of the engine's."""

import argparse
import difflib
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn, Protocol, cast

from .errors import EngineError, EngineStartError

_COMMANDS = {
    "serve": "an HTTP server with OpenAI's API",
    "chat": "a conversation in the terminal, with a server or an engine of its own",
    "complete": "answer one prompt, streamed to the terminal",
    "bench": "figures of this machine, beside those of alternatives",
    "top": "what the actors and mailboxes of running engines do",
    "postmortem": "what was written down about a process that died",
}
EXIT_MISTAKE, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


class _Command(Protocol):
    """A module of this package, named like its command. Only the one that is asked for is imported."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run it; returns the exit code. Raises ValueError for a mistake, EngineError for a failure."""


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line, and which option may have been meant."""

    def refuse(self, unknown: list[str]) -> NoReturn:
        """End because of arguments that it does not know."""
        close = difflib.get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_MISTAKE, f"{self.prog}: {message}\n")


def _parser(asked: str) -> argparse.ArgumentParser:
    parser = _Parser(prog="ringpost", description="An LLM inference engine of asyncio actors.")
    parser.add_argument("--version", action="version", version=f"ringpost {version('ringpost')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"Ringpost: {text}.")
        command.set_defaults(parser=command)
        if name == asked:
            module = cast("_Command", importlib.import_module(f".{name}", __package__))
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    words = sys.argv[1:] if argv is None else argv
    parser = _parser(next((word for word in words if word in _COMMANDS), ""))
    if not words:
        parser.print_help(sys.stderr)
        return EXIT_MISTAKE
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        arguments.parser.refuse(unknown)
    try:
        code: int = arguments.run(arguments)
    except (ValueError, EngineError) as error:
        line = " ".join(str(error).splitlines())
        print(f"ringpost {arguments.command}: {line}", file=sys.stderr)  # noqa: T201
        return EXIT_MISTAKE if isinstance(error, ValueError | EngineStartError) else EXIT_FAILED
    except BrokenPipeError:  # whoever read our output has left
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code
