"""Coroutines side by side, in task groups, with the plain exception of the one that failed."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

R = TypeVar("R")


async def all_of(parts: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Their results, in order. The first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(part) for part in parts]
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return [task.result() for task in running]


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Return, or raise, when the first of them ends; the others are cancelled and have ended too."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(wait) for wait in waits]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                task.cancel()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
