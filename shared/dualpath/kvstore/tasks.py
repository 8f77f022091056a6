"""Owning tasks and threads: what was started is awaited, whatever happens to the one who started it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dualpath.telemetry.logs import get_logger

T = TypeVar("T")
log = get_logger(__name__)

INLINE_BYTES = 64 * 1024


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


class Threads:
    """A bounded pool of threads for calls that block (files, checksums)."""

    def __init__(self, workers: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=name)

    async def run(self, call: Callable[[], T]) -> T:
        """The result of `call`, made in a thread. When this returns or raises, the call has ended."""
        return await finish(asyncio.get_running_loop().run_in_executor(self._pool, call))

    def start(self, call: Callable[[], T], nbytes: int, *, inline_bytes: int) -> asyncio.Future[T]:
        """Begin `call`, which works through `nbytes` bytes, in a thread; or do it here, up to `inline_bytes`. The
        caller awaits it in any case, with `finish`."""
        loop = asyncio.get_running_loop()
        if nbytes > inline_bytes:
            return loop.run_in_executor(self._pool, call)
        done: asyncio.Future[T] = loop.create_future()
        done.set_result(call())
        return done

    async def run_or_inline(self, call: Callable[[], T], nbytes: int) -> T:
        """`call` works through `nbytes` bytes: run it here where a thread would cost more than the work."""
        return call() if nbytes < INLINE_BYTES else await self.run(call)

    def close(self) -> None:
        """Wait for the calls under way and end the threads."""
        self._pool.shutdown(wait=True)


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
