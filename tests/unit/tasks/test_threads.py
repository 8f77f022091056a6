from __future__ import annotations

import asyncio
import threading

import pytest

from dualpath.tasks import Threads


async def test_a_cancelled_call_returns_only_after_its_thread_has() -> None:
    threads = Threads(1, "test")
    entered, release, left = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        entered.set()
        release.wait(5)
        left.set()

    task = asyncio.create_task(threads.run(call))
    assert await asyncio.to_thread(entered.wait, 5)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left.is_set()
    threads.close()
