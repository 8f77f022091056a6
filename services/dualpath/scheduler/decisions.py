"""Why this engine, why this path: decisions and the numbers of their moment, for questions and replays. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from dualpath.policy.api import EngineId, EngineView, QueuedRequest, ReadPathPolicy, ReadSide
from dualpath.policy.rules import (
    CATEGORY_RULE,
    LEAST_TOK,
    WITHIN_Z,
    pick_decode,
    pick_prefill,
)

KEPT = 2_000
VIEWS = 32
"""Of more engines than this only the chosen one's node is kept, as it was afterwards."""


class ReadChoice(msgspec.Struct, frozen=True):
    """Blocks [0, `prefill_blocks`) of `hit_blocks` are read by the PE's node, the rest by the DE's."""

    path: str
    hit_blocks: int
    prefill_blocks: int
    prefill: ReadSide
    decode: ReadSide


class Decision(msgspec.Struct, frozen=True):
    """`decode` and `prefill` give `request` to `engine`; `prefix` makes it wait for `leader`, which computes `blocks`
    of its prompt. `views` are the engines that were looked at, before it counted there, and `left_out` how many more
    there were. `at` is the scheduler's clock; `waiting` requests stayed in the queue."""

    kind: Literal["prefix", "decode", "prefill"]
    request: QueuedRequest
    at: float
    waiting: int = 0
    engine: EngineId | None = None
    rule: str = ""
    threshold: float = 0.0
    views: tuple[EngineView, ...] = ()
    left_out: int = 0
    read: ReadChoice | None = None
    leader: str = ""
    blocks: int = 0

    @property
    def request_id(self) -> str:
        """Without the attempt's number."""
        return self.request.request_id.rpartition("#")[0]


def replay(decision: Decision) -> EngineId | None:
    """Who gets the request by the paper's rules and the numbers that the decision was made with.

    Raises ValueError for one that was made by other rules, or of which not all engines were kept.
    """
    if decision.left_out:
        raise ValueError(f"{decision.left_out} engines were not kept of this decision")
    if decision.rule in CATEGORY_RULE.values():
        view = pick_prefill(decision.views)
    elif decision.rule in (WITHIN_Z, LEAST_TOK):
        assert decision.engine is not None
        group = [v for v in decision.views if v.engine.node_id == decision.engine.node_id]
        view = pick_decode(decision.request, group, decision.threshold)
    else:
        raise ValueError(f"{decision.rule or decision.kind!r} is no rule that looks at loads")
    return view.engine if view is not None else None


def replay_paths(decisions: Iterable[Decision], policy: ReadPathPolicy) -> list[int]:
    """`prefill_blocks` of each read, as a new `policy` chooses them in the same order (ties take turns)."""
    reads = [decision.read for decision in decisions if decision.read is not None]
    return [policy.choose(r.hit_blocks, r.prefill, r.decode).prefill_blocks for r in reads]


class DecisionLog:
    """The last 2,000 decisions."""

    def __init__(self) -> None:
        self._kept: deque[Decision] = deque(maxlen=KEPT)

    def add(self, decision: Decision) -> None:
        self._kept.append(decision)

    def of(self, request_id: str) -> list[Decision]:
        """All that were made of a request, of its choices (`ID-1`, …) and its attempts too, oldest first. With an
        id of the client's (`CLIENTS~ID`), all requests that came with it."""
        return [decision for decision in self._kept if request_id in _names_of(decision.request_id)]

    def latest(self, count: int) -> list[Decision]:
        """Oldest first."""
        return list(self._kept)[-count:] if count > 0 else []


def encode(decisions: Sequence[Decision], most_bytes: int) -> bytes:
    """MessagePack; where they would be larger than `most_bytes`, the oldest are left out."""
    parts: list[msgspec.Raw] = []
    size = 8
    for decision in reversed(decisions):
        part = msgspec.msgpack.encode(decision)
        size += len(part)
        if size > most_bytes:
            break
        parts.append(msgspec.Raw(part))
    return msgspec.msgpack.encode(parts[::-1])


def decode(data: bytes) -> list[Decision]:
    """Raises msgspec.MsgspecError."""
    return msgspec.msgpack.decode(data, type=list[Decision])


def _names_of(request_id: str) -> set[str]:
    given, _, made = request_id.rpartition("~")
    return {request_id, given, made, made.rpartition("-")[0]}
