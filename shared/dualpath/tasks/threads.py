"""Owning threads: a call that was begun has ended when its caller goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dualpath.tasks.tasks import finish

T = TypeVar("T")

INLINE_BYTES = 64 * 1024


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
