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

    def start(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Begin `call` in a thread. The caller awaits it in any case, with `finish`."""
        return asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def run_or_inline(self, call: Callable[[], T], nbytes: int) -> T:
        """`call` works through `nbytes` bytes: run it here where a thread would cost more than the work."""
        return call() if nbytes < INLINE_BYTES else await self.run(call)

    def close(self) -> None:
        """Wait for the calls under way and end the threads."""
        self._pool.shutdown(wait=True)
