"""Policies by the names that settings use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from dualpath.policy.api import BatchPolicy, PlacementPolicy, ReadPathPolicy
from dualpath.policy.batching import TokenBudget
from dualpath.policy.placement import LeastTokens, RoundRobin
from dualpath.policy.read_path import (
    Adaptive,
    FixedDecode,
    FixedPrefill,
    RoundRobinPath,
    SplitHalf,
)

Factory = TypeVar("Factory")

PLACEMENTS: Mapping[str, Callable[[], PlacementPolicy]] = {
    "least-tokens": LeastTokens,
    "round-robin": RoundRobin,
}
READ_PATHS: Mapping[str, Callable[[], ReadPathPolicy]] = {
    "adaptive": Adaptive,
    "prefill": FixedPrefill,
    "decode": FixedDecode,
    "split": SplitHalf,
    "round-robin": RoundRobinPath,
}
BATCHINGS: Mapping[str, Callable[[int], BatchPolicy]] = {"token-budget": TokenBudget}


def placement_policy(name: str) -> PlacementPolicy:
    """A new policy object; one per queue, as policies may remember turns. Raises ValueError for an unknown
    name, with those that exist."""
    return _find("placement", PLACEMENTS, name)()


def read_path_policy(name: str) -> ReadPathPolicy:
    """As `placement_policy`."""
    return _find("read path", READ_PATHS, name)()


def batch_policy(name: str, chunk_tokens: int) -> BatchPolicy:
    """As `placement_policy`; `chunk_tokens` is the most that one forward computes."""
    return _find("batching", BATCHINGS, name)(chunk_tokens)


def _find(kind: str, known: Mapping[str, Factory], name: str) -> Factory:
    if name not in known:
        raise ValueError(f"there is no {kind} policy {name!r}; use one of {', '.join(known)}")
    return known[name]
