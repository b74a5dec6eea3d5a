"""Actor: a table from message type to handler, checked complete when the class is made; and tools for its tasks."""

import asyncio
import threading
import typing
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

Handler = Callable[..., None]  # of an actor and a message
F = TypeVar("F", bound=Handler)
R = TypeVar("R")
SLOW_SECONDS = 0.1  # a handler that takes longer keeps its actor from everything else
_MARK, _LIMIT = "_handles", "_slow_after"


def handles(*message_types: type, slow_after: float = SLOW_SECONDS) -> Callable[[F], F]:
    """Mark a method as the handler of these message types.

    With `debug_actors` it is reported when it takes longer than `slow_after` seconds; `math.inf` for one whose work is long.
    """

    def mark(method: F) -> F:
        setattr(method, _MARK, message_types)
        setattr(method, _LIMIT, slow_after)
        return method

    return mark


def slow_after(handler: Handler) -> float:
    """The limit that `handles` gave a handler, in seconds."""
    limit: float = getattr(handler, _LIMIT)
    return limit


class Actor:
    """Base of the engine's actors.

    A subclass names the unions it receives, `class Core(Actor, receives=(RequestMessage, ResultMessage))`, and has exactly
    one handler for each of their members: a missing or a superfluous one is a TypeError when the class is made.
    """

    _handlers: Mapping[type, Handler] = {}

    def __init_subclass__(cls, *, receives: tuple[Any, ...] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not receives:  # a refinement of an actor handles what that one does
            return
        wanted = {member for union in receives for member in typing.get_args(union) or (union,)}
        table: dict[type, Handler] = {}
        for method in vars(cls).values():
            for message_type in getattr(method, _MARK, ()):
                if message_type in table:
                    raise TypeError(f"{cls.__name__} has two handlers for {message_type.__name__}")
                table[message_type] = method
        if wanted != table.keys():
            odd = ", ".join(sorted(member.__name__ for member in wanted ^ table.keys()))
            raise TypeError(f"{cls.__name__}: handlers and received messages differ in {odd}")
        cls._handlers = table

    def dispatch(self, message: object) -> None:
        """Call the handler of a message; what it raises goes to `handler_failed`. KeyError for one that is not received."""
        handler = self._handlers[type(message)]
        try:
            handler(self, message)
        except Exception as error:  # noqa: BLE001 - whatever it is, `handler_failed` decides
            self.handler_failed(message, error)

    def handler_failed(self, message: object, error: Exception) -> None:
        """A handler raised this. An actor that knows whose alone the failure is tells them; here it is the actor's own end."""
        request = getattr(message, "request", None)
        about = "" if request is None else f" about request {request}"
        error.add_note(f"in the handler of {type(message).__name__}{about}")
        raise error

    def wrap_handlers(self, wrap: Callable[[type, Handler], Handler]) -> None:
        """Have `wrap(message type, handler)` called in place of every handler of this one actor."""
        self._handlers = {message_type: wrap(message_type, handler) for message_type, handler in self._handlers.items()}


async def run_abandonable(function: Callable[..., R], *arguments: Any) -> R:
    """Run a blocking function in a thread that nobody waits for when the caller is cancelled, nor when the program ends.

    For work that may be cut off anywhere, as downloads into a temporary directory may.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def settle(result: R | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if isinstance(error, StopIteration):  # a future refuses it
            future.set_exception(RuntimeError(f"{function.__name__} raised {error!r}"))
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(typing.cast("R", result))

    def run() -> None:
        outcome: tuple[R | None, BaseException | None]
        try:
            outcome = function(*arguments), None
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            outcome = None, error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name=function.__name__, daemon=True).start()
    return await future


class TaskHost:
    """Owns one task that one caller starts and another stops, where no `async with` block could enclose both.

    It is the only place that makes a task outside a task group; whoever has the host awaits `wait`.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, None], name: str, on_end: Callable[[], None] | None = None) -> None:
        """`on_end` is called from the loop when the task has ended, however it ended."""
        self._task = asyncio.get_running_loop().create_task(coroutine, name=name)
        if on_end is not None:
            self._task.add_done_callback(lambda _: on_end())
        self._cancelled = False

    def cancel(self) -> None:
        """Have the task end. Only the first call does anything: a task that is ending already is left to end in order."""
        if not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    @property
    def ended(self) -> bool:
        """Whether the task has ended."""
        return self._task.done()

    async def wait(self) -> None:
        """Wait for the task's end, however it ends. Cancelling the caller does not cancel the task."""
        await asyncio.wait([self._task])
