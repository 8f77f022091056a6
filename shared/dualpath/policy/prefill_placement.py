"""PE scheduling (paper §5): `rules.pick_prefill` over all engines, in two heaps. Pure."""

from __future__ import annotations

import heapq
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
from dualpath.policy.queue import RequestQueue
from dualpath.policy.rules import CATEGORY_RULE, LONG_QUEUE, OVERLOADED, SHORT_QUEUE, category

_Entry = tuple[int, int, int, EngineId, int]
"""`tok`, `seq`, `given`, the engine, and which version of its view this is."""


class _Engine:
    __slots__ = ("given", "version", "view")

    def __init__(self, view: EngineView) -> None:
        self.view, self.given, self.version = view, 0, 0


class CategoryPlacement(PlacementPolicy):
    """Head of the queue to the engine with the least `tok` in category 2, else in 3, until both are empty."""

    def __init__(self, ordering: Ordering) -> None:
        self._queue = RequestQueue(ordering)
        self._engines: dict[EngineId, _Engine] = {}
        self._nodes: dict[str, tuple[EngineId, ...]] = {}
        self._heaps: dict[int, list[_Entry]] = {SHORT_QUEUE: [], LONG_QUEUE: []}
        self._turn = self._versions = 0

    def add(self, request: QueuedRequest) -> None:
        self._queue.add(request)

    def discard(self, request_id: str) -> None:
        self._queue.discard(request_id)

    def update(self, node_id: str, engines: Sequence[EngineView]) -> None:
        names = tuple(view.engine for view in engines)
        if (before := self._nodes.get(node_id, ())) != names:
            for name in set(before) - set(names):
                del self._engines[name]
            self._nodes[node_id] = names
        for view in engines:
            engine = self._engines.get(view.engine)
            if engine is None:
                engine = self._engines[view.engine] = _Engine(view)
            elif engine.view == view:
                continue
            engine.view = view
            self._file(engine)

    def remove(self, node_id: str) -> None:
        for name in self._nodes.pop(node_id, ()):
            del self._engines[name]

    def place_one(self) -> Placement | None:
        if not self._queue:
            return None
        for number in (SHORT_QUEUE, LONG_QUEUE):
            if (engine := self._least(self._heaps[number])) is not None:
                return self._give(self._queue.pop(), engine, CATEGORY_RULE[number])
        return None

    def views(self, node_id: str) -> list[EngineView]:
        engines = [self._engines[name] for name in self._nodes.get(node_id, ())]
        return [shown(engine.view, engine.given) for engine in engines]

    def waiting(self) -> list[str]:
        return [request.request_id for request in self._queue]

    def __len__(self) -> int:
        return len(self._queue)

    def _give(self, request: QueuedRequest, engine: _Engine, rule: str) -> Placement:
        self._turn += 1
        engine.given = self._turn
        engine.view = engine.view.plus(request, 0)
        self._file(engine)
        return Placement(request.request_id, engine.view.engine, rule)

    def _file(self, engine: _Engine) -> None:
        """Put it into the heap of its category; what older entries say of it no longer counts."""
        self._versions += 1
        engine.version = self._versions
        number = category(engine.view)
        if number == OVERLOADED:
            return
        heap, view = self._heaps[number], engine.view
        heapq.heappush(heap, (view.tok, view.seq, engine.given, view.engine, engine.version))
        if len(heap) > 4 * len(self._engines) + 64:
            heap[:] = [entry for entry in heap if self._holds(entry)]
            heapq.heapify(heap)

    def _least(self, heap: list[_Entry]) -> _Engine | None:
        while heap:
            if self._holds(heap[0]):
                return self._engines[heap[0][3]]
            heapq.heappop(heap)
        return None

    def _holds(self, entry: _Entry) -> bool:
        engine = self._engines.get(entry[3])
        return engine is not None and engine.version == entry[4]


def shown(view: EngineView, given: int) -> EngineView:
    """`view` with the policy's own memory in it."""
    return replace(view, given=given)
