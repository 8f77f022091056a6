"""The one thread that computes, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class ComputeThread:
    """Runs functions one after another, under inference mode, with `threads` torch threads."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(
            1, "compute", initializer=torch.set_num_threads, initargs=(threads,)
        )

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` there. A caller that is cancelled gets its CancelledError only once the function has
        returned, so that memory which it reads or writes can be reused from then on."""
        running = asyncio.get_running_loop().run_in_executor(
            self._executor, _without_gradients, function
        )
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                try:
                    await asyncio.wait([running])
                except asyncio.CancelledError:
                    continue
            if not running.cancelled():
                running.exception()
            raise

    def close(self) -> None:
        """Wait for what runs, and end the thread."""
        self._executor.shutdown(wait=True)


def _without_gradients(function: Callable[[], T]) -> T:
    with torch.inference_mode():
        return function()
