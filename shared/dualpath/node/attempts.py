"""The attempts that a node works on: one task each, started once, aborted in any state."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, Protocol, TypeVar

from dualpath.wire.types import Attempt

_REMEMBERED = 20_000


class HasAttempt(Protocol):
    @property
    def attempt(self) -> Attempt: ...


R = TypeVar("R", bound=HasAttempt)


class AttemptTable(Generic[R]):
    """Records by attempt. A record's task is its owner: it frees, before it ends, all that the record holds.

    An attempt that has ended (or was aborted before it came) is remembered and never starts again, so
    repeated and late assignments do no harm.
    """

    def __init__(self, on_crash: Callable[[Attempt, BaseException], None]) -> None:
        """`on_crash` is told of a task that ended by an error that it should have handled itself."""
        self._on_crash = on_crash
        self._aborted: set[Attempt] = set()
        self._records: dict[Attempt, R] = {}
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._ended: OrderedDict[Attempt, None] = OrderedDict()

    def get(self, attempt: Attempt) -> R | None:
        return self._records.get(attempt)

    def knows(self, attempt: Attempt) -> bool:
        return attempt in self._records or attempt in self._ended

    def start(self, record: R, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as the record's task. The caller has checked `knows`."""
        attempt = record.attempt
        self._records[attempt] = record
        task = asyncio.create_task(work, name=f"attempt {attempt}")
        self._tasks[attempt] = task
        task.add_done_callback(lambda done: self._end(attempt, done))

    def abort(self, attempt: Attempt) -> bool:
        """Cancel the attempt's task, or see to it that it never starts. True where one was running."""
        task = self._tasks.get(attempt)
        if task is None:
            self._remember(attempt)
            return False
        if attempt not in self._aborted:
            self._aborted.add(attempt)
            task.cancel()
        return True

    async def close(self) -> None:
        """Abort all, and wait until each has freed what it held."""
        tasks = list(self._tasks.values())
        for attempt in list(self._tasks):
            self.abort(attempt)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        self._tasks.pop(attempt, None)
        self._records.pop(attempt, None)
        self._aborted.discard(attempt)
        self._remember(attempt)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_crash(attempt, error)

    def _remember(self, attempt: Attempt) -> None:
        self._ended[attempt] = None
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(self._records)

    def __iter__(self) -> Iterator[R]:
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)
