"""The book of attempts: which are alive, which have been, and when they must end. Pure."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Generic, TypeVar

from dualpath.blocks import KEY_BYTES, Phase
from dualpath.scheduler.fairness import FairShare
from dualpath.scheduler.records import AttemptRecord
from dualpath.wire.control import Submit
from dualpath.wire.types import Attempt

_REMEMBERED = 20_000

K = TypeVar("K")
V = TypeVar("V")


class _Memory(Generic[K, V]):
    """The last 20,000 things that were remembered or recalled."""

    def __init__(self) -> None:
        self._items: OrderedDict[K, V] = OrderedDict()

    def __setitem__(self, key: K, value: V) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > _REMEMBERED:
            self._items.popitem(last=False)

    def get(self, key: K) -> V | None:
        return self._items.get(key)


class Book:
    """`records` holds the attempts that are alive, at most one of each request."""

    def __init__(self, block_tokens: int) -> None:
        self.records: dict[Attempt, AttemptRecord] = {}
        self._block_tokens = block_tokens
        self._current: dict[str, AttemptRecord] = {}
        self._ended: _Memory[Attempt, Phase] = _Memory()
        self._arrivals: _Memory[str, tuple[float, float]] = _Memory()
        self.shares = FairShare()
        self._deadlines: list[tuple[float, str, int]] = []

    def current(self, request_id: str) -> AttemptRecord | None:
        return self._current.get(request_id)

    def ended(self, attempt: Attempt) -> Phase | None:
        """How an attempt ended, as far as it is remembered: late messages are known by it for what they are."""
        return self._ended.get(attempt)

    def void(self, attempt: Attempt) -> None:
        """Should this attempt be submitted yet, it counts as cancelled."""
        if self._ended.get(attempt) is None:
            self._ended[attempt] = Phase.CANCELLED

    def open(
        self, submit: Submit, *, gateway_incarnation: str, hbm_tokens: int, now: float
    ) -> AttemptRecord:
        """A new attempt. `hbm_tokens` is the largest HBM there is: no promise needs to be larger.

        What is promised is the prompt in whole blocks, and one block to grow into.
        """
        block, prompt = self._block_tokens, submit.prompt_tokens
        known = (submit.hit_blocks_estimate, len(submit.keys) // KEY_BYTES, (prompt - 1) // block)
        hits = max(min(known), 0)
        needed = (-(-prompt // block) + 1) * block
        arrival, arrived_s = self._arrival(submit, now)
        record = AttemptRecord(
            submit=submit,
            arrival=arrival,
            gateway_incarnation=gateway_incarnation,
            new_tokens=prompt - hits * block,
            needed_tokens=min(needed, hbm_tokens) if hbm_tokens else needed,
            hit_blocks=hits,
            entered_at=now,
            deadline_at=now + max(submit.deadline_s, 0.0),
            arrived_s=arrived_s,
        )
        attempt = record.attempt
        self.records[attempt] = self._current[attempt.request_id] = record
        heapq.heappush(self._deadlines, (record.deadline_at, attempt.request_id, attempt.number))
        return record

    def _arrival(self, submit: Submit, now: float) -> tuple[float, float]:
        request_id = submit.attempt.request_id
        arrival = self._arrivals.get(request_id)
        if arrival is None:
            place = self.shares.place(submit.tenant, submit.weight, submit.prompt_tokens)
            arrival = place, now
        self._arrivals[request_id] = arrival
        return arrival

    def close(self, record: AttemptRecord) -> None:
        """The attempt has reached its last phase."""
        attempt = record.attempt
        del self.records[attempt]
        if self._current.get(attempt.request_id) is record:
            del self._current[attempt.request_id]
        self._ended[attempt] = record.phase

    def overdue(self, now: float) -> list[AttemptRecord]:
        """Attempts whose deadline has passed since the last call."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id, number = heapq.heappop(self._deadlines)
            record = self.records.get(Attempt(request_id, number))
            if record is not None:
                due.append(record)
        return due
