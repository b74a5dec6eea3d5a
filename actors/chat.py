"""`ringpost chat`: questions and answers in the terminal, with a running server or an engine of its own."""

import argparse
import asyncio
import os
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress

from ..ipc.messages.config import EngineConfig
from ..ipc.messages.errors import ParameterError
from .base import run_abandonable
from .chat_backends import ChatBackend, Messages, own_engine, running_server
from .config import add_engine_arguments, engine_config, engine_options
from .errors import EngineDeadError, EngineError
from .logs import configure_logging
from .loops import loop_factory
from .sampling_options import add_sampling_arguments, sampling_options, sampling_params
from .tasks import first_of

with suppress(ImportError):  # an interpreter may lack it; importing it gives `input` its editing
    import readline  # noqa: F401

_HINT = "Ctrl-C stops an answer, Ctrl-D ends the conversation."
_INTERRUPTED = 128 + signal.SIGINT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("message", metavar="MESSAGE", nargs="?", help="answer this and end (default: a conversation)")
    parser.add_argument("--url", help="server to talk to, such as http://127.0.0.1:8000 (default: an engine of its own)")
    parser.add_argument("--api-key", dest="key", metavar="KEY", help="the server's key (default: $RINGPOST_API_KEY)")
    parser.add_argument("--system-prompt", metavar="TEXT", help="what the model is told before the conversation")
    text = "alias, directory, .gguf file or hub id, or the server's name of it (default: smollm2, or the server's first)"
    parser.add_argument("--model", default=argparse.SUPPRESS, help=text)
    add_sampling_arguments(parser, max_tokens=None)
    add_engine_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Body of the command; returns its exit code."""
    config = engine_config(**engine_options(arguments))
    backend = _backend(arguments, config)
    configure_logging("frontend0", config.runtime)
    with asyncio.Runner(loop_factory=loop_factory(config.runtime)) as runner:
        return runner.run(chat(backend, arguments.message, arguments.system_prompt))


def _backend(arguments: argparse.Namespace, config: EngineConfig) -> AbstractAsyncContextManager[ChatBackend]:
    """Whom the arguments name. Raises ValueError for a value out of range, and for options that do not go together."""
    params = sampling_params(arguments)
    if arguments.url is None:
        if arguments.key is not None:
            raise ValueError("api_key is for a server: name it with --url, or leave the key out")
        return own_engine(config, params)
    options = engine_options(arguments)
    model, seed = options.pop("model", None), options.pop("seed", None)
    if options:
        raise ValueError(f"{', '.join(options)}: with --url the engine is the server's, and so are its options; leave them out")
    fields = {name: value for name, value in sampling_options(arguments).items() if value is not None}
    if seed is not None:
        fields["seed"] = config.runtime.seed
    key = arguments.key or os.environ.get("RINGPOST_API_KEY") or None
    return running_server(arguments.url, key, model, fields)


async def chat(source: AbstractAsyncContextManager[ChatBackend], message: str | None, system_prompt: str | None) -> int:
    """Answer the message, or hold a conversation; returns the exit code. Raises what the backend raises."""
    async with source as backend:
        conversation = Conversation(backend, system_prompt)
        if message is None:
            return await converse(conversation)
        await conversation.ask(message)
    return 0


class Conversation:
    """What was said, and who answers."""

    def __init__(self, backend: ChatBackend, system_prompt: str | None) -> None:
        self._backend = backend
        self._start: Messages = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        self._said: Messages = []

    async def ask(self, question: str) -> None:
        """Print the answer as it comes. It joins the conversation as far as it came, also when this is cancelled.

        What no longer fits the model's context makes it forget what was said before; raises what the backend raises.
        """
        try:
            await self._ask(question)
        except ParameterError as error:
            if error.code != "context_length_exceeded" or not self._said:
                raise
            _complain(f"the context is full, so what was said before is forgotten ({error})")
            self._said = []
            await self._ask(question)

    async def _ask(self, question: str) -> None:
        said: Messages = [*self._said, {"role": "user", "content": question}]
        answer = ""
        try:
            async with aclosing(self._backend.answer(self._start + said)) as pieces:
                async for piece in pieces:
                    answer += piece
                    sys.stdout.write(piece)
                    sys.stdout.flush()
        finally:
            if answer:
                self._said = [*said, {"role": "assistant", "content": answer}]
                sys.stdout.write("\n")
                sys.stdout.flush()


async def converse(conversation: Conversation) -> int:
    """Ask what the lines of standard input ask, until its end or an interrupt at the prompt; returns the exit code.

    An interrupt during an answer ends that answer. At a terminal a question that fails is told, and the next one may do
    better; elsewhere its error is raised.
    """
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    try:
        with _terminal_kept(at_terminal):
            while True:
                lines: list[str] = []
                await first_of(_read_line(lines, at_terminal), interrupted.wait())
                if interrupted.is_set() or not lines:
                    return _INTERRUPTED if interrupted.is_set() else 0
                if lines[0].strip():
                    await first_of(_try(conversation, lines[0], at_terminal), interrupted.wait())
                interrupted.clear()
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _read_line(lines: list[str], at_terminal: bool) -> None:
    """Append a line of standard input; nothing at its end."""
    line = await run_abandonable(_input if at_terminal else sys.stdin.readline)
    if line:
        lines.append(line.removesuffix("\n"))


def _input() -> str:
    """A line with its newline, edited by the user; empty at the end."""
    try:
        return input("> ") + "\n"
    except EOFError:
        return ""


async def _try(conversation: Conversation, question: str, at_terminal: bool) -> None:
    try:
        await conversation.ask(question)
    except EngineDeadError:
        raise
    except (ValueError, EngineError) as error:
        if not at_terminal:
            raise
        _complain(str(error))


def _complain(message: str) -> None:
    """Say in one line on standard error what goes on, but not as asked."""
    line = " ".join(message.splitlines())
    print(f"ringpost chat: {line}", file=sys.stderr)  # noqa: T201


@contextmanager
def _terminal_kept(at_terminal: bool) -> Iterator[None]:
    """Leave the terminal as it was, although a thread may still be editing a line."""
    if not at_terminal:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    print(_HINT, file=sys.stderr)  # noqa: T201
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        print()  # noqa: T201
