"""Copies between host memory and a device's wire window, off the event loop and without the GIL."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_INLINE_BYTES = 64 * 1024
"""Below this a copy costs less than handing it to a thread."""

Copy = tuple[memoryview, memoryview]
"""(target, source), of equal length."""


class Copier:
    """Runs lists of copies; a node owns one and closes it."""

    def __init__(self, threads: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="copy")

    async def run(self, copies: Sequence[Copy]) -> None:
        """Return when all copies are done, also when cancelled meanwhile: memory may be reused then."""
        if sum(len(source) for _, source in copies) <= _INLINE_BYTES:
            _copy_all(copies)
            return
        work = asyncio.get_running_loop().run_in_executor(self._pool, _copy_all, copies)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await work
            raise

    def close(self) -> None:
        self._pool.shutdown()


def _copy_all(copies: Sequence[Copy]) -> None:
    for target, source in copies:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
