"""DE scheduling in two phases (paper §5): `rules.pick_group`, then `rules.threshold` and `pick_decode`. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from dualpath.policy.api import (
    UNLIMITED,
    EngineId,
    EngineView,
    Ordering,
    Placement,
    PlacementPolicy,
    QueuedRequest,
)
from dualpath.policy.prefill_placement import shown
from dualpath.policy.queue import RequestQueue
from dualpath.policy.rules import LEAST_TOK, WITHIN_Z, pick_decode, threshold


class _Group:
    """A node's engines and its private queue. `z` is computed when it is needed, and holds until the engines or the
    queue change from outside."""

    def __init__(self, ordering: Ordering) -> None:
        self.engines: dict[EngineId, EngineView] = {}
        self.queue = RequestQueue(ordering)
        self.engines_tok = self.queued_tok = self.given = 0
        self.z: float | None = None
        self.open = False
        self.capacity = 0
        """Tokens that its largest engine could ever hold."""

    @property
    def rank(self) -> tuple[int, int]:
        """Total `tok`; of equal groups the one that has waited longest for a request."""
        return self.engines_tok + self.queued_tok, self.given

    def take(self, engines: Sequence[EngineView]) -> None:
        before = self.engines
        self.engines = {
            view.engine: shown(view, before[view.engine].given if view.engine in before else 0)
            for view in engines
        }
        self.engines_tok = sum(view.tok for view in engines)
        self.open = any(view.open for view in engines)
        self.capacity = max((view.hbm_total or UNLIMITED for view in engines), default=0)
        self.z = None

    def has_room(self, request: QueuedRequest) -> bool:
        return any(
            view.open and view.hbm_free >= request.needed_tokens for view in self.engines.values()
        )

    def threshold(self) -> float:
        if self.z is None:
            self.z = threshold(self.queue, list(self.engines.values()))
        return self.z


class TwoPhasePlacement(PlacementPolicy):
    """Phase 1: the queue is drained, each request to the private queue of the group with the least `tok`, where it
    counts at once. Phase 2: within a group, from the head of its private queue, until no DE has room for it.

    Two things that the paper leaves open. A request goes only to groups that could hold it, and those of a group
    that leaves go back to the front. And a group that nobody waits for, with room, takes a head that waits for room
    elsewhere: else requests would wait beside free HBM, bound to a group by what was true when they came.
    """

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._queue = RequestQueue(ordering)
        self._groups: dict[str, _Group] = {}
        self._least: list[tuple[tuple[int, int], str]] = []
        self._where: dict[str, str] = {}
        self._requests: dict[str, QueuedRequest] = {}
        self._changed: dict[str, None] = {}
        self._blocked: dict[str, None] = {}
        self._homeless: dict[str, QueuedRequest] = {}
        self._turn = 0

    # ── what changes ───────────────────────────────────────────────────────────────────────────────
    def add(self, request: QueuedRequest) -> None:
        if request.request_id in self._requests:
            raise ValueError(f"{request.request_id} waits already")
        self._requests[request.request_id] = request
        self._queue.add(request)

    def discard(self, request_id: str) -> None:
        if (request := self._requests.pop(request_id, None)) is None:
            return
        self._queue.discard(request_id)
        self._homeless.pop(request_id, None)
        if (node_id := self._where.pop(request_id, None)) is not None:
            group = self._groups[node_id]
            group.queue.discard(request_id)
            self._queued(node_id, group, -request.tokens)

    def update(self, node_id: str, engines: Sequence[EngineView]) -> None:
        group = self._groups.get(node_id)
        is_new = group is None or not group.open
        if group is None:
            group = self._groups[node_id] = _Group(self._ordering)
        group.take(engines)
        self._touch(node_id, group)
        if not group.open:
            self._send_back(group)
        elif is_new:
            self._take_homeless()

    def remove(self, node_id: str) -> None:
        if (group := self._groups.pop(node_id, None)) is not None:
            self._send_back(group)
            self._changed.pop(node_id, None)
            self._blocked.pop(node_id, None)

    # ── phase 1 ────────────────────────────────────────────────────────────────────────────────────
    def _drain(self) -> None:
        if not self._queue or not any(group.open for group in self._groups.values()):
            return
        while self._queue:
            request = self._queue.pop()
            if (node_id := self._pick_group(request)) is None:
                self._homeless[request.request_id] = request
            else:
                self._join(node_id, request)

    def _pick_group(self, request: QueuedRequest) -> str | None:
        """The group with the least `tok` that could hold it; None if there is none."""
        passed = []
        found: str | None = None
        while self._least and found is None:
            rank, node_id = self._least[0]
            group = self._groups.get(node_id)
            if group is None or group.rank != rank or not group.open:
                heapq.heappop(self._least)
            elif group.capacity >= request.needed_tokens:
                found = node_id
            else:
                passed.append(heapq.heappop(self._least))
        for entry in passed:
            heapq.heappush(self._least, entry)
        return found

    def _join(self, node_id: str, request: QueuedRequest) -> None:
        group = self._groups[node_id]
        self._turn += 1
        group.given = self._turn
        group.queue.add(request)
        self._where[request.request_id] = node_id
        self._queued(node_id, group, request.tokens)

    def _queued(self, node_id: str, group: _Group, tokens: int) -> None:
        group.queued_tok += tokens
        group.z = None
        self._touch(node_id, group)

    def _touch(self, node_id: str, group: _Group) -> None:
        """Its place among the groups, and what it can take, are to be found anew."""
        self._changed[node_id] = None
        self._blocked.pop(node_id, None)
        heapq.heappush(self._least, (group.rank, node_id))
        if len(self._least) > 4 * len(self._groups) + 64:
            self._least = [(group.rank, name) for name, group in self._groups.items()]
            heapq.heapify(self._least)

    def _send_back(self, group: _Group) -> None:
        for request in list(group.queue):
            group.queue.discard(request.request_id)
            del self._where[request.request_id]
            self._queue.add(request)
        group.queued_tok = 0
        group.z = None

    def _take_homeless(self) -> None:
        homeless, self._homeless = self._homeless, {}
        for request in homeless.values():
            self._queue.add(request)

    # ── phase 2 ────────────────────────────────────────────────────────────────────────────────────
    def place_one(self) -> Placement | None:
        self._drain()
        while self._changed:
            node_id = next(iter(self._changed))
            group = self._groups[node_id]
            request = group.queue.head() or self._from_elsewhere(node_id, group)
            if request is None:
                del self._changed[node_id]
            elif (view := self._pick(group, request)) is not None:
                return self._give(node_id, group, request, view)
            elif not self._hand_on(node_id, request):
                del self._changed[node_id]
                self._blocked[node_id] = None
        return None

    def _pick(self, group: _Group, request: QueuedRequest) -> EngineView | None:
        return pick_decode(request, group.engines.values(), group.threshold())

    def _give(
        self, node_id: str, group: _Group, request: QueuedRequest, view: EngineView
    ) -> Placement:
        z, rule = group.threshold(), WITHIN_Z
        if view.tok + request.tokens > z:
            rule = LEAST_TOK
        self._turn += 1
        # The group's total stays: what was in its queue is at an engine.
        group.engines[view.engine] = view.plus(request, self._turn)
        group.queue.discard(request.request_id)
        group.queued_tok -= request.tokens
        group.engines_tok += request.tokens
        del self._where[request.request_id], self._requests[request.request_id]
        return Placement(request.request_id, view.engine, rule, z)

    def _from_elsewhere(self, node_id: str, group: _Group) -> QueuedRequest | None:
        """Nobody waits for this group: the first of those that wait for room in another one and fit here."""
        heads = []
        for name in self._blocked:
            queue = self._groups[name].queue
            if (head := queue.head()) is not None and group.has_room(head):
                heads.append((queue.head_key(), name, head))
        if not heads:
            return None
        _, name, head = min(heads, key=lambda entry: entry[:2])
        self._move(head, name, node_id)
        return head

    def _hand_on(self, node_id: str, request: QueuedRequest) -> bool:
        """The head has no room here: give it to a group that nobody waits for, if one has room."""
        idle = [
            (group.rank, name)
            for name, group in self._groups.items()
            if name != node_id and not group.queue and group.has_room(request)
        ]
        if not idle:
            return False
        self._move(request, node_id, min(idle)[1])
        return True

    def _move(self, request: QueuedRequest, source: str, target: str) -> None:
        group = self._groups[source]
        group.queue.discard(request.request_id)
        self._queued(source, group, -request.tokens)
        self._join(target, request)

    # ── what is to be seen ─────────────────────────────────────────────────────────────────────────
    def views(self, node_id: str) -> list[EngineView]:
        group = self._groups.get(node_id)
        return list(group.engines.values()) if group else []

    def waiting(self) -> list[str]:
        by_key = sorted(self._requests.values(), key=self._ordering.key)
        return [request.request_id for request in by_key]

    def __len__(self) -> int:
        return len(self._requests)
