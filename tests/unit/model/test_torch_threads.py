"""The compute thread: one after another, and cancellation waits for what runs."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

from dualpath.model.torch_threads import ComputeThread


async def test_runs_in_one_thread_without_gradients() -> None:
    thread = ComputeThread(1)
    names = {await thread.run(lambda: threading.current_thread().name) for _ in range(3)}
    assert len(names) == 1
    assert names != {threading.current_thread().name}
    assert await thread.run(torch.is_inference_mode_enabled)
    assert await thread.run(torch.get_num_threads) == 1
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    thread.close()


@pytest.mark.parametrize("fails", [False, True])
async def test_cancelled_caller_waits_for_the_thread(fails: bool) -> None:
    thread = ComputeThread(1)
    started, go, left = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go.wait(10)
        left.set()
        if fails:
            raise ValueError("nobody hears this")

    task = asyncio.create_task(thread.run(work))
    assert await asyncio.to_thread(started.wait, 10)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left.is_set()
    thread.close()


async def test_cancelled_before_its_turn_still_waits_its_turn() -> None:
    thread = ComputeThread(1)
    go, ran = threading.Event(), threading.Event()
    first = asyncio.create_task(thread.run(lambda: go.wait(10)))
    second = asyncio.create_task(thread.run(ran.set))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    go.set()
    assert await first
    with pytest.raises(asyncio.CancelledError):
        await second
    assert ran.is_set()
    thread.close()
