"""A node's profile: bandwidths and speeds, and what the policies make of them (paper §5). Pure."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from dualpath.policy.attention import AttentionFit
from dualpath.wire.types import NodeSpeed

VERSION = 1

ALPHA_S = 3.0
"""α, the short-read-queue threshold, is what a node reads in so many seconds."""

BETA_S = 5.0
"""β, the unfinished-token limit, is what an engine computes in so many seconds."""

QUOTA_S = 0.3
"""Compute quota: attention time, over all layers, of one prefill forward."""


class Subject(msgspec.Struct, frozen=True):
    """What a profile is of. One that differs in anything is another's.

    `engine` is what sets the speed of a synthetic engine, or the kind of the other. Bandwidths are those that
    are emulated, in bytes per second; None: the machine's own.
    """

    fingerprint: str
    engine: str
    device: str
    threads: int
    cores: int
    transport: str
    snic_bandwidth: int | None
    cnic_bandwidth: int | None

    @property
    def key(self) -> str:
        """Names the profile's file."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


class Profile(msgspec.Struct, frozen=True):
    """`forward` predicts the seconds of a forward: `fixed_s`, `per_token_s`, and `per_pair_s` per pair of a new token
    and one that it attends to. `decode_step_s` holds (batch, seconds). Bandwidths are in bytes per second; None: not
    known."""

    subject: Subject
    how: Literal["full", "quick"]
    token_bytes: int
    forward: AttentionFit | None
    compute_tokens_per_s: float
    snic_bytes_per_s: float | None = None
    cnic_bytes_per_s: float | None = None
    decode_step_s: tuple[tuple[int, float], ...] = ()
    measured_at: str = ""
    version: int = VERSION

    @property
    def read_tokens_per_s(self) -> float:
        """0: not known."""
        return (self.snic_bytes_per_s or 0.0) / self.token_bytes

    @property
    def alpha_tokens(self) -> int | None:
        return alpha_tokens(self.speed)

    @property
    def beta_tokens(self) -> int | None:
        return beta_tokens(self.speed)

    @property
    def attention(self) -> AttentionFit | None:
        """Of `forward` what grows with pairs: the time that the quota bounds. What grows with tokens `chunk_tokens`
        bounds. None where the two could not be told apart."""
        if self.forward is None or self.forward.per_pair_s <= 0:
            return None
        return AttentionFit(0.0, 0.0, self.forward.per_pair_s, error=self.forward.error)

    @property
    def speed(self) -> NodeSpeed:
        """What the node tells the scheduler."""
        return NodeSpeed(self.read_tokens_per_s, self.compute_tokens_per_s)


def alpha_tokens(speed: NodeSpeed) -> int | None:
    """α in tokens; None where the node does not know how fast it reads."""
    return max(int(ALPHA_S * speed.read_tokens_per_s), 1) if speed.read_tokens_per_s > 0 else None


def beta_tokens(speed: NodeSpeed) -> int | None:
    """β in tokens; None where the node does not know how fast it computes."""
    rate = speed.compute_tokens_per_s
    return max(int(BETA_S * rate), 1) if rate > 0 else None
