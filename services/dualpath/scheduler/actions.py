"""What the core wants done. The shell does it, in this order, and tells the core how it went. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dualpath.blocks import Phase
from dualpath.policy.api import EngineId, ReadSplit
from dualpath.scheduler.records import AttemptRecord
from dualpath.wire.codec import Message
from dualpath.wire.control import gateway_subject, node_subject
from dualpath.wire.types import Attempt, ReadPath


@dataclass(frozen=True)
class Peer:
    """A node or gateway, in one of its lives."""

    kind: Literal["node", "gateway"]
    name: str
    incarnation: str

    @property
    def subject(self) -> str:
        return node_subject(self.name) if self.kind == "node" else gateway_subject(self.name)


@dataclass(frozen=True)
class Send:
    """Repeat `message` until `to` has answered; ask the core what to do once `give_up_s` have passed.

    Messages to one peer about one attempt go out one after the other; an Abort takes the place of
    what has not been answered yet.
    """

    to: Peer
    attempt: Attempt
    message: Message
    give_up_s: float


@dataclass(frozen=True)
class Forget:
    """`peer` is dead: send it nothing more."""

    peer: Peer


@dataclass(frozen=True)
class Ended:
    """An attempt is over; all there is to tell about it. `by_node`: a node gave it up and has said so itself."""

    attempt: Attempt
    phase: Phase
    code: str
    reason: str
    by_node: bool
    decode: str
    prefill: str
    read_path: ReadPath
    prompt_tokens: int
    hit_tokens_estimate: int
    total_s: float
    phases_s: dict[str, float]
    """Phase → seconds."""
    waits_s: dict[str, float]
    """The parts of QUEUED: waiting for a DE, for its slots, for a PE."""

    @classmethod
    def of(
        cls,
        record: AttemptRecord,
        code: str,
        reason: str,
        *,
        by_node: bool,
        now: float,
        block: int,
    ) -> Ended:
        return cls(
            attempt=record.attempt,
            phase=record.phase,
            code=code,
            reason=reason,
            by_node=by_node,
            decode=_name(record.decode),
            prefill=_name(record.prefill),
            read_path=path_name(record.split),
            prompt_tokens=record.submit.prompt_tokens,
            hit_tokens_estimate=record.hit_blocks * block,
            total_s=now - record.entered_at,
            phases_s=record.phases_s,
            waits_s=record.waits_s,
        )


@dataclass(frozen=True)
class Note:
    """Something that operators should read."""

    level: Literal["info", "warning"]
    event: str
    fields: dict[str, object] = field(default_factory=dict)


Action = Send | Forget | Ended | Note


def path_name(split: ReadSplit) -> ReadPath:
    """The policy's name of a path as the wire's. Raises ValueError for one that the wire does not know."""
    paths: tuple[ReadPath, ...] = ("none", "prefill", "decode", "split")
    for known in paths:
        if known == split.path:
            return known
    raise ValueError(f"there is no read path {split.path!r}")


def _name(engine: EngineId | None) -> str:
    return f"{engine.node_id}/{engine.number}" if engine else ""
