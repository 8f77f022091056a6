from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from dualpath.lanes.alarm import Alarm


def on(loop: str, test: Callable[[], Awaitable[None]]) -> None:
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:

        async def main() -> None:
            await test()

        runner.run(main())


LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


@LOOPS
def test_it_fires_once_and_not_early(loop: str) -> None:
    async def test() -> None:
        fired = asyncio.Queue[float]()
        alarm = Alarm(lambda: fired.put_nowait(time.monotonic()))
        for delay_s in (0.0, 1e-5, 3e-4, 0.002, 0.02):
            began = time.monotonic()
            alarm.set(delay_s)
            assert await fired.get() - began >= delay_s
        await asyncio.sleep(0.02)
        assert fired.empty()
        alarm.close()
        alarm.close()

    on(loop, test)


@LOOPS
def test_the_last_time_that_was_set_counts(loop: str) -> None:
    async def test() -> None:
        fired = asyncio.Event()
        alarm = Alarm(fired.set)
        alarm.set(3600.0)
        alarm.set(0.001)
        await fired.wait()
        alarm.close()

    on(loop, test)


@LOOPS
def test_it_leaves_no_file_open(loop: str) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def closed() -> None:
        before = open_files()
        Alarm(lambda: None).close()
        assert open_files() == before

    async def forgotten() -> None:
        Alarm(lambda: None).set(3600.0)

    on(loop, closed)
    before = open_files()
    on(loop, forgotten)
    assert open_files() == before
