"""Attempts that wait for engines of one side, and the policy that gives them away. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dualpath.policy.api import EngineView, Placement, PlacementPolicy, QueuedRequest
from dualpath.scheduler.decisions import VIEWS
from dualpath.scheduler.members import Members
from dualpath.scheduler.nodes import NodeRecord
from dualpath.scheduler.records import AttemptRecord
from dualpath.wire.types import Role


@dataclass
class _Told:
    """What the policy was last told of a node: of which life of it, as of which version."""

    node: NodeRecord
    version: int


@dataclass(frozen=True)
class Placed:
    """A placement, and what it was made from (see `decisions.Decision`)."""

    record: AttemptRecord
    placement: Placement
    views: tuple[EngineView, ...]
    left_out: int


class SideQueue:
    """Keeps the policy of one side up to date. Only what has changed of nodes since the last time is told to it."""

    def __init__(self, role: Role, members: Members, policy: PlacementPolicy, beta: int) -> None:
        """`beta`: the β of engines whose nodes do not say theirs."""
        self.policy = policy
        self.tokens = 0
        """Of the prompts that wait."""
        self._role, self._members, self._beta = role, members, beta
        self._records: dict[str, AttemptRecord] = {}
        self._told: dict[str, _Told] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[AttemptRecord]:
        """In the order in which they will be placed."""
        return (self._records[name] for name in self.policy.waiting())

    def add(self, record: AttemptRecord, request: QueuedRequest) -> None:
        self.policy.add(request)
        self._records[request.request_id] = record
        self.tokens += record.submit.prompt_tokens

    def discard(self, record: AttemptRecord) -> None:
        name = str(record.attempt)
        if self._records.pop(name, None) is not None:
            self.policy.discard(name)
            self.tokens -= record.submit.prompt_tokens

    def placements(self) -> Iterator[Placed]:
        """Who gets which engine now. The caller gives the engine's node its duty before it asks for the next."""
        if not self._records:
            return
        self._tell()
        seen = self._seen()
        while (placement := self.policy.place_one()) is not None:
            record = self._records.pop(placement.request_id)
            self.tokens -= record.submit.prompt_tokens
            node_id = placement.engine.node_id
            left_out = 0
            if seen is None:
                seen = tuple(self.policy.views(node_id))
                left_out = self._engines() - len(seen)
            yield Placed(record, placement, seen, left_out)
            self._tell_of(self._members.nodes[node_id])
            seen = self._seen()

    def _engines(self) -> int:
        return sum(len(node.info.engines) for node in self._members.of(self._role))

    def _seen(self) -> tuple[EngineView, ...] | None:
        """All engines as the policy counts them; None where they are more than a log can keep."""
        if self._engines() > VIEWS:
            return None
        return tuple(view for name in self._told for view in self.policy.views(name))

    def _tell(self) -> None:
        nodes = {node.name: node for node in self._members.of(self._role)}
        for name in [name for name in self._told if name not in nodes]:
            del self._told[name]
            self.policy.remove(name)
        for node in nodes.values():
            told = self._told.get(node.name)
            if told is not None and told.node is not node:
                self.policy.remove(node.name)
            if told is None or told.node is not node or told.version != node.version:
                self._tell_of(node)

    def _tell_of(self, node: NodeRecord) -> None:
        self._told[node.name] = _Told(node, node.version)
        self.policy.update(node.name, list(node.views(self._beta)))
