"""Owning tasks: what was started is awaited, whatever happens to the one who started it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

from dualpath.telemetry.logs import get_logger

T = TypeVar("T")
log = get_logger(__name__)


async def finish(work: Awaitable[T]) -> T:
    """Await `work` to its end even when cancelled; the cancellation is raised afterwards.

    For work that uses memory which the caller gives back next.
    """
    future = asyncio.ensure_future(work)
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        error = None if future.cancelled() else future.exception()
        raise asyncio.CancelledError from error
    return future.result()


async def stop(task: asyncio.Task[T]) -> None:
    """Cancel `task` and wait for its end, whatever that is."""
    task.cancel()
    await finish(asyncio.wait({task}))
    if not task.cancelled():
        task.exception()


async def together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all, done at the same time. The first failure ends the others, and is raised as it is."""
    if len(works) == 1:
        return [await works[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return [task.result() for task in tasks]


class Tasks:
    """Tasks of one owner, who ends them with `close`, or lets them end with `join`. One that fails is logged
    and the others go on."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, object], name: str) -> asyncio.Task[object]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed", task=task.get_name(), exc_info=error)

    async def join(self) -> None:
        """Wait until all have ended by themselves, also those that they start meanwhile."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Cancel all and wait for their ends, also for those that they start while ending."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks))
