"""Policies by the names that settings use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from dualpath.policy.api import BatchPolicy, Ordering, PlacementPolicy, ReadPathPolicy
from dualpath.policy.attention import AttentionFit
from dualpath.policy.batching import QuotaBatch, TokenBudget
from dualpath.policy.decode_placement import TwoPhasePlacement
from dualpath.policy.ordering import Fifo, ShortFirst
from dualpath.policy.placement import LeastTokens, RandomPlacement, RoundRobin
from dualpath.policy.prefill_placement import CategoryPlacement
from dualpath.policy.read_path import (
    Adaptive,
    FixedDecode,
    FixedPrefill,
    RoundRobinPath,
    Split,
    SplitHalf,
)

Factory = TypeVar("Factory")
Side = Literal["prefill", "decode"]


def _adaptive(side: Side, ordering: Ordering) -> PlacementPolicy:
    return CategoryPlacement(ordering) if side == "prefill" else TwoPhasePlacement(ordering)


PLACEMENTS: Mapping[str, Callable[[Side, Ordering], PlacementPolicy]] = {
    "adaptive": _adaptive,
    "least-tokens": lambda _, ordering: LeastTokens(ordering),
    "round-robin": lambda _, ordering: RoundRobin(ordering),
    "random": lambda _, ordering: RandomPlacement(ordering),
}
READ_PATHS: Mapping[str, Callable[[int], ReadPathPolicy]] = {
    "adaptive": lambda _: Adaptive(),
    "prefill": lambda _: FixedPrefill(),
    "decode": lambda _: FixedDecode(),
    "split": Split,
    "halves": lambda _: SplitHalf(),
    "round-robin": lambda _: RoundRobinPath(),
}
BATCHINGS: Mapping[str, Callable[[int, AttentionFit | None, float], BatchPolicy]] = {
    "token-budget": lambda chunk_tokens, _, __: TokenBudget(chunk_tokens),
    "quota": lambda chunk_tokens, fit, quota_s: (
        QuotaBatch(chunk_tokens, fit, quota_s) if fit else TokenBudget(chunk_tokens)
    ),
}
ORDERINGS: Mapping[str, Callable[[float], Ordering]] = {
    "fifo": lambda _: Fifo(),
    "short-first": ShortFirst,
}


def placement_policy(name: str, side: Side, ordering: Ordering | None = None) -> PlacementPolicy:
    """A new policy with its queue; `side` is whose engines it fills. Raises ValueError for an unknown name, with
    those that exist."""
    return _find("placement", PLACEMENTS, name)(side, ordering or Fifo())


def ordering_policy(name: str, tokens_per_s: float) -> Ordering:
    """As `placement_policy`; `tokens_per_s` is how fast an engine computes, roughly."""
    return _find("ordering", ORDERINGS, name)(tokens_per_s)


def read_path_policy(name: str, block_tokens: int = 64) -> ReadPathPolicy:
    """As `placement_policy`."""
    return _find("read path", READ_PATHS, name)(block_tokens)


def batch_policy(
    name: str, chunk_tokens: int, fit: AttentionFit | None = None, quota_s: float = 0.3
) -> BatchPolicy:
    """As `placement_policy`; `chunk_tokens` is the most that one forward computes. Where nothing is known of
    attention's time, `quota` is the token budget."""
    return _find("batching", BATCHINGS, name)(chunk_tokens, fit, quota_s)


def _find(kind: str, known: Mapping[str, Factory], name: str) -> Factory:
    if name not in known:
        raise ValueError(f"there is no {kind} policy {name!r}; use one of {', '.join(known)}")
    return known[name]
