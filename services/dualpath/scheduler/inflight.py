"""Prefixes that are being computed: who shares one waits until it is stored, and then reads it. Pure.

A request that waits here holds nothing, and waits only for one that has entered the queues: so nobody waits in a
circle, and how the other ends (stored, done, failed, cancelled) lets all go that wait for it. The first of them then
computes what is not there, and the others wait for that one, no longer than `wait_s` in all.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

from dualpath.blocks import unpack_keys
from dualpath.scheduler.records import WAIT_DECODE, WAIT_PREFIX, AttemptRecord
from dualpath.wire.types import Attempt

MIN_BLOCKS = 16
"""Whoever shares fewer blocks computes them: waiting for their storage would take as long."""

_STORED_S = 10.0
"""A gateway's estimate of the hits may be this old: blocks that were stored since are counted too."""

_STORED_KEYS = 1 << 16


@dataclass
class _Leader:
    """Computes `keys`, blocks `first` and on of its prompt."""

    record: AttemptRecord
    first: int
    keys: list[bytes]
    followers: list[AttemptRecord] = field(default_factory=list)


@dataclass(frozen=True)
class Shared:
    """An attempt waits for `leader`, which computes `blocks` of its prompt."""

    leader: Attempt
    blocks: int


class InFlight:
    """`wait_s` 0: nobody waits."""

    def __init__(self, block_tokens: int, wait_s: float) -> None:
        self._block_tokens, self._wait_s = block_tokens, wait_s
        self._leaders: dict[Attempt, _Leader] = {}
        self._computed_by: dict[bytes, _Leader] = {}
        self._waits_for: dict[Attempt, _Leader] = {}
        self._until: dict[Attempt, float] = {}
        self._due: list[tuple[float, int, AttemptRecord]] = []
        self._parked = 0
        self._stored: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        """Attempts that wait."""
        return len(self._waits_for)

    def join(self, record: AttemptRecord, now: float) -> Shared | None:
        """An attempt wants to enter the queues. For whom it has to wait instead; None: it goes, and computes what is
        missing. What computes its whole prompt anyway does not take part."""
        if not self._wait_s or record.submit.sampling.prompt_logprobs:
            return None
        keys = unpack_keys(record.submit.keys)
        most = min((record.submit.prompt_tokens - 1) // self._block_tokens, len(keys))
        self._count_stored(record, keys[:most], now)
        hits = record.hit_blocks
        leader = self._computed_by.get(keys[hits]) if hits < most else None
        until = self._until.setdefault(record.attempt, now + self._wait_s)
        if leader is not None and now < until and _before(leader.record, record):
            shared = 0
            while hits + shared < most and self._computed_by.get(keys[hits + shared]) is leader:
                shared += 1
            if shared >= MIN_BLOCKS:
                leader.followers.append(record)
                self._waits_for[record.attempt] = leader
                record.wait_for(WAIT_PREFIX, now)
                self._parked += 1
                heapq.heappush(self._due, (until, self._parked, record))
                return Shared(leader.record.attempt, shared)
        self._lead(record, keys)
        return None

    def _count_stored(self, record: AttemptRecord, keys: list[bytes], now: float) -> None:
        while self._stored and next(iter(self._stored.values())) + _STORED_S < now:
            self._stored.popitem(last=False)
        hits = record.hit_blocks
        while hits < len(keys) and keys[hits] in self._stored:
            hits += 1
        record.hits_are(hits, self._block_tokens)

    def _lead(self, record: AttemptRecord, keys: list[bytes]) -> None:
        mine = keys[record.hit_blocks :]
        if len(mine) < MIN_BLOCKS:
            return
        leader = _Leader(record, record.hit_blocks, mine)
        self._leaders[record.attempt] = leader
        for key in mine:
            self._computed_by.setdefault(key, leader)

    def stored(self, record: AttemptRecord, blocks: int, now: float) -> list[AttemptRecord]:
        """The first `blocks` blocks of an attempt's prompt are readable; returns those that may go."""
        leader = self._leaders.get(record.attempt)
        if leader is None:
            return []
        for key in leader.keys[: max(blocks - leader.first, 0)]:
            self._stored[key] = now
            self._stored.move_to_end(key)
        while len(self._stored) > _STORED_KEYS:
            self._stored.popitem(last=False)
        return self._dissolve(leader, now)

    def leave(self, record: AttemptRecord, now: float, *, done: bool) -> list[AttemptRecord]:
        """An attempt is over; returns those that may go. `done`: what it computed is readable."""
        self._until.pop(record.attempt, None)
        self._stop_waiting(record)
        if done:
            return self.stored(record, len(record.submit.keys), now)
        leader = self._leaders.get(record.attempt)
        return [] if leader is None else self._dissolve(leader, now)

    def due(self, now: float) -> list[AttemptRecord]:
        """Those that have waited long enough."""
        freed = []
        while self._due and self._due[0][0] <= now:
            record = heapq.heappop(self._due)[-1]
            if self._stop_waiting(record):
                record.wait_for(WAIT_DECODE, now)
                freed.append(record)
        return freed

    def _dissolve(self, leader: _Leader, now: float) -> list[AttemptRecord]:
        del self._leaders[leader.record.attempt]
        for key in leader.keys:
            if self._computed_by.get(key) is leader:
                del self._computed_by[key]
        for record in leader.followers:
            del self._waits_for[record.attempt]
            record.wait_for(WAIT_DECODE, now)
        return leader.followers

    def _stop_waiting(self, record: AttemptRecord) -> bool:
        leader = self._waits_for.pop(record.attempt, None)
        if leader is None:
            return False
        leader.followers.remove(record)
        return True


def _before(leader: AttemptRecord, record: AttemptRecord) -> bool:
    """Nobody waits for one that others may overtake where it itself may not be."""
    return leader.submit.priority <= record.submit.priority
