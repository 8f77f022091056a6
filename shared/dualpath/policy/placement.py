"""Naive twins of the paper's placement, for comparison. Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from msgspec.structs import replace

from dualpath.policy.api import (
    EngineId,
    EngineView,
    Ordering,
    Placement,
    PlacementPolicy,
    QueuedRequest,
)
from dualpath.policy.ordering import Fifo
from dualpath.policy.queue import RequestQueue
from dualpath.policy.rules import OVERLOADED, category


class _HeadFirst(PlacementPolicy):
    """From the head; each request goes to the engine that `_pick` says of those with room that are not overloaded.

    A head without room blocks what is behind it. Remembers when each engine was last given something, so that
    equal engines take turns even where requests come one at a time.
    """

    rule = ""

    def __init__(self, ordering: Ordering | None = None) -> None:
        self._queue = RequestQueue(ordering or Fifo())
        self._nodes: dict[str, dict[EngineId, EngineView]] = {}
        self._turn = 0

    def add(self, request: QueuedRequest) -> None:
        self._queue.add(request)

    def discard(self, request_id: str) -> None:
        self._queue.discard(request_id)

    def update(self, node_id: str, engines: Sequence[EngineView]) -> None:
        before = self._nodes.get(node_id, {})
        self._nodes[node_id] = {
            view.engine: replace(
                view, given=before[view.engine].given if view.engine in before else 0
            )
            for view in engines
        }

    def remove(self, node_id: str) -> None:
        self._nodes.pop(node_id, None)

    def place_one(self) -> Placement | None:
        if (request := self._queue.head()) is None:
            return None
        fitting = [
            view
            for views in self._nodes.values()
            for view in views.values()
            if view.hbm_free >= request.needed_tokens and category(view) != OVERLOADED
        ]
        if not fitting:
            return None
        view = self._pick(fitting)
        self._queue.pop()
        self._turn += 1
        self._nodes[view.engine.node_id][view.engine] = view.plus(request, self._turn)
        return Placement(request.request_id, view.engine, self.rule)

    @abstractmethod
    def _pick(self, fitting: list[EngineView]) -> EngineView: ...

    def views(self, node_id: str) -> list[EngineView]:
        return list(self._nodes.get(node_id, {}).values())

    def waiting(self) -> list[str]:
        return [request.request_id for request in self._queue]

    def __len__(self) -> int:
        return len(self._queue)


class LeastTokens(_HeadFirst):
    """The engine with the fewest unfinished tokens `tok`; of equal ones the fewest requests `seq`; of
    those the one that has waited longest for work."""

    rule = "least tok"

    def _pick(self, fitting: list[EngineView]) -> EngineView:
        return min(fitting, key=lambda view: (view.tok, view.seq, view.given))


class RoundRobin(_HeadFirst):
    """Engines in turn, whatever their load; one without room is passed over until it has some."""

    rule = "turn"

    def _pick(self, fitting: list[EngineView]) -> EngineView:
        return min(fitting, key=lambda view: view.given)


class RandomPlacement(_HeadFirst):
    """Any engine; the same ones whenever the same `seed` meets the same requests."""

    rule = "random"

    def __init__(self, ordering: Ordering | None = None, seed: int = 0) -> None:
        super().__init__(ordering)
        self._seed = seed

    def _pick(self, fitting: list[EngineView]) -> EngineView:
        return fitting[_mixed(self._seed + self._turn) % len(fitting)]


def _mixed(number: int) -> int:
    """The splitmix64 generator's output for its n-th state: 64 bits that look random."""
    mask = (1 << 64) - 1
    z = (number + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)
