"""The gate that lets a group's engines step together."""

from __future__ import annotations

import asyncio
import random

import pytest

from dualpath.node.engine_group import Alone, StepGate


class Opened:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def begin(gate: StepGate, rank: int, wake: asyncio.Event | None = None) -> asyncio.Task[bool]:
    return asyncio.create_task(gate.begin(rank, wake))


async def test_it_opens_once_all_are_there_and_one_has_work() -> None:
    opened = Opened()
    gate = StepGate(3, opened)
    idle = [begin(gate, rank, asyncio.Event()) for rank in (0, 1)]
    await settle()
    assert not any(task.done() for task in idle)
    assert opened.times == 0
    assert await gate.begin(2, None)
    assert await asyncio.gather(*idle) == [True, True]
    assert opened.times == 1


async def test_who_has_work_waits_for_those_that_still_step() -> None:
    gate = StepGate(2, Opened())
    working = begin(gate, 0)
    await settle()
    assert not working.done()
    assert await gate.begin(1, asyncio.Event())
    assert await working


async def test_all_idle_nothing_opens_until_one_wakes_to_work() -> None:
    opened = Opened()
    gate = StepGate(2, opened)
    wake = asyncio.Event()
    first, second = begin(gate, 0, wake), begin(gate, 1, asyncio.Event())
    await settle()
    wake.set()
    assert not await first
    await settle()
    assert not second.done()
    assert opened.times == 0
    assert await gate.begin(0, None)
    assert await second


async def test_a_member_that_is_cancelled_at_the_gate_is_not_counted() -> None:
    gate = StepGate(2, Opened())
    leaving = begin(gate, 0)
    await settle()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    idle = begin(gate, 1, asyncio.Event())
    await settle()
    assert not idle.done()
    assert await gate.begin(0, None)
    assert await idle


async def test_all_members_make_the_same_steps_whatever_each_has_to_do() -> None:
    opened, size, steps = Opened(), 4, 300
    gate = StepGate(size, opened)
    done = [0] * size
    work = [steps // size] * size
    wakes = [asyncio.Event() for _ in range(size)]
    draw = random.Random(5)

    async def member(rank: int) -> None:
        while any(work):
            if work[rank]:
                work[rank] -= 1
                assert await gate.begin(rank)
            elif not await gate.begin(rank, wakes[rank]):
                wakes[rank].clear()
                continue
            done[rank] += 1
            # Nobody gets a step ahead of another.
            assert max(done) - min(done) <= 1
            for _ in range(draw.randrange(3)):
                await asyncio.sleep(0)
            wakes[draw.randrange(size)].set()

    members = [asyncio.create_task(member(rank)) for rank in range(size)]
    async with asyncio.timeout(60):
        await asyncio.wait(members, return_when=asyncio.FIRST_COMPLETED)
    await settle()
    assert len(set(done)) == 1
    assert opened.times == done[0] >= steps // size
    for task in members:
        task.cancel()
    for result in await asyncio.gather(*members, return_exceptions=True):
        assert result is None or isinstance(result, asyncio.CancelledError)


async def test_an_engine_alone_begins_at_once_and_wakes_for_its_own_work() -> None:
    steps, wake = Alone(), asyncio.Event()
    assert await steps.begin()
    waiting = asyncio.create_task(steps.begin(wake))
    await settle()
    assert not waiting.done()
    wake.set()
    assert not await waiting
