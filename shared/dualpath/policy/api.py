"""Policies behind interfaces, found by name in `dualpath.policy.registry` (paper §5).

Engines are named by (node id, number). A policy sees numbers only; it neither waits nor sends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class EngineId(NamedTuple):
    node_id: str
    number: int


@dataclass(frozen=True)
class QueuedRequest:
    """`tokens`: its prompt; `new_tokens`: what is to be computed of it; `needed_tokens`: HBM that decoding it
    needs at least."""

    request_id: str
    tokens: int
    new_tokens: int
    needed_tokens: int


@dataclass(frozen=True)
class EngineView:
    """An engine whose fetch is open. `read_q` is its node's, in tokens; `hbm_free` counts promises as taken."""

    engine: EngineId
    seq: int
    tok: int
    read_q: int
    hbm_free: int = 0


@dataclass(frozen=True)
class Placement:
    request_id: str
    engine: EngineId


class PlacementPolicy(ABC):
    """Gives queued requests to engines. Stateful only where its rule is (round robin)."""

    @abstractmethod
    def place(
        self, queue: Sequence[QueuedRequest], engines: Sequence[EngineView]
    ) -> list[Placement]:
        """FIFO from the head of `queue`; what finds no engine stays queued, and blocks what is behind it.
        Loads of what is placed in one call count in the same call."""


@dataclass(frozen=True)
class ReadSplit:
    """Blocks [0, prefill_blocks) are read on the PE side, [prefill_blocks, hit_blocks) on the DE side."""

    prefill_blocks: int
    hit_blocks: int

    @property
    def path(self) -> str:
        if not self.hit_blocks:
            return "none"
        if self.prefill_blocks == self.hit_blocks:
            return "prefill"
        return "split" if self.prefill_blocks else "decode"


class ReadPathPolicy(ABC):
    @abstractmethod
    def choose(self, hit_blocks: int, prefill_read_q: int, decode_read_q: int) -> ReadSplit:
        """Queues are in tokens, of the PE's and of the DE's node."""


@dataclass(frozen=True)
class Waiting:
    """A request that an engine could prefill next: `cached` tokens are there, `new` are to be computed.
    `hbm_bytes(n)` = `hbm_fixed + n · hbm_per_token` for a chunk of n."""

    cached: int
    new: int
    hbm_fixed: int = 0
    hbm_per_token: int = 0


class BatchPolicy(ABC):
    """What enters the next prefill forward (paper §5, intra-engine; a DE always batches all)."""

    @abstractmethod
    def select(self, waiting: Sequence[Waiting], hbm_free_bytes: int) -> list[int]:
        """For a FIFO prefix of `waiting`: tokens of each to compute in this forward, all ≥ 1, the last one
        perhaps a chunk of its `new`. Not empty unless `waiting` is, or the head has no HBM."""
