"""Engines and requests for tests of policies. An engine's name is `node` or `node.number`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, TypeVar

from dualpath.policy.api import EngineId, EngineView, PlacementPolicy, QueuedRequest

Policy = TypeVar("Policy", bound=PlacementPolicy)

_arrivals = count()


def view(name: str, tok: int = 0, seq: int = 0, *, read_q: int = 0, **fields: Any) -> EngineView:
    node, _, number = name.partition(".")
    fields.setdefault("hbm_free", 10_000)
    return EngineView(EngineId(node, int(number or 0)), seq, tok, read_q, **fields)


def request(name: str, tokens: int = 100, needed: int = 0, **fields: Any) -> QueuedRequest:
    fields.setdefault("new_tokens", tokens)
    fields.setdefault("arrival", next(_arrivals))
    return QueuedRequest(name, tokens, needed_tokens=needed, **fields)


def fill(policy: Policy, engines: Sequence[EngineView]) -> Policy:
    """Tell a policy of all nodes that the engines are of."""
    for node in dict.fromkeys(engine.engine.node_id for engine in engines):
        policy.update(node, [engine for engine in engines if engine.engine.node_id == node])
    return policy
