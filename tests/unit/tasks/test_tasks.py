from __future__ import annotations

import asyncio

import pytest

from dualpath.tasks import Tasks, finish, stop, together


async def test_finish_outlives_cancellation_and_then_raises_it() -> None:
    release, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await release.wait()
        ended.set()

    task = asyncio.create_task(finish(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_cancellation_that_comes_just_as_the_work_has_ended_is_raised_too() -> None:
    work = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(finish(work))
    await asyncio.sleep(0)
    work.set_result(None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_finish_gives_the_result_or_the_error() -> None:
    async def seven() -> int:
        return 7

    async def fail() -> int:
        raise KeyError("x")

    assert await finish(seven()) == 7
    with pytest.raises(KeyError):
        await finish(fail())


async def test_a_deadline_around_finish_still_counts() -> None:
    async def work() -> None:
        await asyncio.sleep(0.05)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await finish(work())


async def test_close_ends_all_tasks_also_those_that_ending_tasks_start() -> None:
    tasks = Tasks()
    seen: list[str] = []

    async def late() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("late")

    async def early() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            tasks.spawn(late(), "late")
            await asyncio.sleep(0)
            seen.append("early")

    tasks.spawn(early(), "early")
    await asyncio.sleep(0)
    await tasks.close()
    assert seen == ["early", "late"]
    assert len(tasks) == 0


async def test_join_waits_for_all_also_those_that_are_started_meanwhile() -> None:
    tasks = Tasks()
    seen: list[str] = []

    async def late() -> None:
        await asyncio.sleep(0)
        seen.append("late")

    async def early() -> None:
        await asyncio.sleep(0)
        tasks.spawn(late(), "late")
        seen.append("early")

    tasks.spawn(early(), "early")
    await tasks.join()
    assert seen == ["early", "late"]


async def test_a_failing_task_is_forgotten_and_the_others_go_on() -> None:
    tasks = Tasks()
    done = asyncio.Event()

    async def fail() -> None:
        raise RuntimeError("on purpose")

    async def succeed() -> None:
        done.set()

    tasks.spawn(fail(), "fail")
    tasks.spawn(succeed(), "succeed")
    await done.wait()
    await tasks.close()


async def test_stop_takes_whatever_end_the_task_has() -> None:
    async def fail() -> None:
        raise RuntimeError("on purpose")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await stop(task)
    sleeper = asyncio.create_task(asyncio.sleep(60))
    await stop(sleeper)
    assert sleeper.cancelled()


async def test_together_gives_all_results_in_order() -> None:
    async def after(turns: int, result: str) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        return result

    assert await together([after(3, "a"), after(1, "b")]) == ["a", "b"]
    assert await together([after(0, "alone")]) == ["alone"]


async def test_together_ends_the_others_at_the_first_failure_and_raises_it_as_it_is() -> None:
    ended = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail() -> None:
        raise KeyError("x") from ValueError("why")

    with pytest.raises(KeyError) as raised:
        await together([wait(), fail()])
    assert isinstance(raised.value.__cause__, ValueError)
    assert ended.is_set()
