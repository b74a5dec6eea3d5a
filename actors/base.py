"""Actor: a table from message type to handler, checked complete when the class is made; and the owner of long-lived tasks."""

import asyncio
import typing
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

F = TypeVar("F", bound=Callable[..., None])
_MARK = "_handles"


def handles(*message_types: type) -> Callable[[F], F]:
    """Mark a method as the handler of these message types."""

    def mark(method: F) -> F:
        setattr(method, _MARK, message_types)
        return method

    return mark


class Actor:
    """Base of the engine's actors.

    A subclass names the unions it receives, `class Core(Actor, receives=(RequestMessage, ResultMessage))`, and has exactly
    one handler for each of their members: a missing or a superfluous one is a TypeError when the class is made.
    """

    _handlers: ClassVar[dict[type, Callable[..., None]]] = {}

    def __init_subclass__(cls, *, receives: tuple[Any, ...] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not receives:  # a refinement of an actor handles what that one does
            return
        wanted = {member for union in receives for member in typing.get_args(union) or (union,)}
        table: dict[type, Callable[..., None]] = {}
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
        """Call the handler of a message."""
        self._handlers[type(message)](self, message)


class TaskHost:
    """Owns one task that one caller starts and another stops, where no `async with` block could enclose both.

    It is the only place that makes a task outside a task group; whoever has the host awaits `stop`.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self._task = asyncio.get_running_loop().create_task(coroutine, name=name)

    @property
    def done(self) -> bool:
        """Whether the task has ended."""
        return self._task.done()

    async def join(self) -> None:
        """Wait for the end. Cancelling the caller does not cancel the task. An exception of the task is raised here."""
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Cancel the task and wait for its end; its own exception, if it had one before, is not raised again."""
        self._task.cancel()
        await asyncio.wait([self._task])
