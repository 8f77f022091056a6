"""Copies between host memory and a device's wire window, off the event loop and without the GIL."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dualpath.memory.copying import Pair as Copy
from dualpath.memory.copying import copy_pieces
from dualpath.tasks import Threads

__all__ = ["Copier", "Copy"]


class Copier:
    """Runs lists of copies; a node owns one and closes it."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = Threads(threads, "copy")

    async def run(self, copies: Sequence[Copy]) -> None:
        """Return when all copies are done, also when cancelled meanwhile: memory may be reused then."""
        nbytes = sum(len(source) for _, source in copies)
        await self._threads.run_or_inline(partial(copy_pieces, copies), nbytes)

    def close(self) -> None:
        self._threads.close()
