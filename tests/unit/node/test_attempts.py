from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dualpath.node.attempts import AttemptTable
from dualpath.wire.types import Attempt


@dataclass
class Record:
    attempt: Attempt


def table() -> tuple[AttemptTable[Record], list[BaseException]]:
    crashes: list[BaseException] = []
    return AttemptTable(lambda _, error: crashes.append(error)), crashes


async def test_an_ended_attempt_is_remembered_and_not_started_again() -> None:
    attempts, _ = table()
    record = Record(Attempt("r", 1))
    attempts.start(record, asyncio.sleep(0))
    await attempts.close()
    assert len(attempts) == 0
    assert attempts.knows(record.attempt)
    assert not attempts.knows(Attempt("r", 2))


async def test_an_abort_that_comes_before_its_assignment_keeps_it_from_starting() -> None:
    attempts, _ = table()
    assert not attempts.abort(Attempt("r", 1))
    assert attempts.knows(Attempt("r", 1))


async def test_aborting_twice_interrupts_the_release_only_once() -> None:
    attempts, _ = table()
    released = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            released.set()

    record = Record(Attempt("r", 1))
    attempts.start(record, work())
    await asyncio.sleep(0)
    assert attempts.abort(record.attempt)
    await asyncio.sleep(0)
    assert attempts.abort(record.attempt)
    await attempts.close()
    assert released.is_set()


async def test_an_error_that_a_task_did_not_handle_is_told() -> None:
    attempts, crashes = table()

    async def work() -> None:
        raise RuntimeError("boom")

    attempts.start(Record(Attempt("r", 1)), work())
    await asyncio.sleep(0)
    await attempts.close()
    assert [str(error) for error in crashes] == ["boom"]
