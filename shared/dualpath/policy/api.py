"""Policies behind interfaces, found by name in `dualpath.policy.registry` (paper §5).

Engines are named by (node id, number); a node's engines are a group. A policy sees numbers only; it neither waits nor
sends. What it sees and says are structs that a log can keep and a test can play again.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

UNLIMITED = sys.maxsize


class EngineId(NamedTuple):
    node_id: str
    number: int


class QueuedRequest(msgspec.Struct, frozen=True, gc=False):
    """`tokens`: its prompt; `new_tokens`: what is to be computed of it; `needed_tokens`: HBM that decoding it
    needs at least.

    Lower `priority` goes first; `arrival` is its place among equals, `arrived_s` is when it came, by any clock that
    all requests of a queue share: an `Ordering` makes the queue's order of them.
    """

    request_id: str
    tokens: int
    new_tokens: int
    needed_tokens: int = 0
    priority: int = 0
    arrival: float = 0
    arrived_s: float = 0.0


class EngineView(msgspec.Struct, frozen=True, gc=False):
    """An engine as its node's last fetch shows it, with what it was given since.

    `seq` requests are unfinished, of `tok` tokens in total, of which `compute_tok` are to be computed yet (None:
    all). `read_q` is its node's, in tokens. `hbm_free` of `hbm_total` tokens counts promises as taken; a total of 0
    is not known. `alpha` and `beta` are §5's α and β for this engine; β is a time of computing, so it is compared
    with `compute_tok`. With fewer than `always` requests an engine is not overloaded, whatever their length (0 is the
    paper's rule). One that is not `open` gets nothing. `given` orders engines by when they last got something.
    """

    engine: EngineId
    seq: int
    tok: int
    read_q: int
    hbm_free: int = 0
    hbm_total: int = 0
    compute_tok: int | None = None
    alpha: int = UNLIMITED
    beta: int = UNLIMITED
    always: int = 0
    open: bool = True
    given: int = 0

    def plus(self, request: QueuedRequest, given: int) -> EngineView:
        """The same engine once `request` was given to it."""
        compute = self.compute_tok
        return EngineView(
            self.engine,
            self.seq + 1,
            self.tok + request.tokens,
            self.read_q,
            self.hbm_free - request.needed_tokens,
            self.hbm_total,
            None if compute is None else compute + request.new_tokens,
            self.alpha,
            self.beta,
            self.always,
            self.open,
            given,
        )


class Placement(msgspec.Struct, frozen=True, gc=False):
    """`rule` says in words why this engine: for logs, metrics and tables. `threshold` is the Z of that moment, where
    there is one."""

    request_id: str
    engine: EngineId
    rule: str
    threshold: float = 0.0


class Ordering(ABC):
    """Who stands where in a queue."""

    @abstractmethod
    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Least is first. A function of the request alone, so that nobody's place is to be computed anew."""


class PlacementPolicy(ABC):
    """A queue, and the rule by which engines get what is in it. Times of a call do not grow with the queue."""

    @abstractmethod
    def add(self, request: QueuedRequest) -> None:
        """A request waits. Raises ValueError where its id waits already."""

    @abstractmethod
    def discard(self, request_id: str) -> None:
        """It waits no longer, if it did."""

    @abstractmethod
    def update(self, node_id: str, engines: Sequence[EngineView]) -> None:
        """A group's fetch: all engines of the node, as they are now. `given` is the policy's own."""

    @abstractmethod
    def remove(self, node_id: str) -> None:
        """The node is gone, or takes nothing more."""

    @abstractmethod
    def place_one(self) -> Placement | None:
        """Give away the next request, which leaves the queue, and count it at its engine at once. None: nothing
        can be placed until something changes."""

    def place(self) -> list[Placement]:
        """All that can be placed now."""
        placed = []
        while (placement := self.place_one()) is not None:
            placed.append(placement)
        return placed

    @abstractmethod
    def views(self, node_id: str) -> list[EngineView]:
        """A node's engines as the policy counts them at this moment; none of a node that it does not know."""

    @abstractmethod
    def waiting(self) -> list[str]:
        """Request ids in the order of the queue. For people and tests: takes time that grows with the queue."""

    @abstractmethod
    def __len__(self) -> int:
        """Requests that wait."""


class ReadSide(msgspec.Struct, frozen=True):
    """A node that could read: its read queue in tokens, and what its SNIC reads in a second. Only the ratio of two
    sides' rates matters."""

    read_q: int
    tokens_per_s: float = 1.0


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
    def choose(self, hit_blocks: int, prefill: ReadSide, decode: ReadSide) -> ReadSplit:
        """Who reads which of a request's hits, of the PE's and the DE's node."""


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
