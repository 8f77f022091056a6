"""Who may take part: one model, one protocol, one block size for all. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from dualpath.scheduler.actions import Peer
from dualpath.scheduler.nodes import NodeRecord
from dualpath.wire.codec import PROTOCOL_VERSION
from dualpath.wire.control import RegisterGateway, RegisterNode
from dualpath.wire.types import NodeSpeed, Role


@dataclass
class GatewayRecord:
    info: RegisterGateway
    last_seen: float

    @property
    def peer(self) -> Peer:
        return Peer("gateway", self.info.gateway_id, self.info.incarnation)


class Members:
    """Nodes and gateways that are registered.

    The fingerprint is given, or the first one that registers, for as long as anybody is registered.
    """

    def __init__(self, block_tokens: int, fingerprint: str | None) -> None:
        self.block_tokens = block_tokens
        self.nodes: dict[str, NodeRecord] = {}
        self.gateways: dict[str, GatewayRecord] = {}
        self._given = fingerprint

    @property
    def fingerprint(self) -> str | None:
        if self._given is not None:
            return self._given
        members: list[NodeRecord | GatewayRecord] = [*self.nodes.values(), *self.gateways.values()]
        return members[0].info.fingerprint if members else None

    def objection(self, member: RegisterNode | RegisterGateway) -> str | None:
        """Why `member` cannot take part, in a sentence."""
        name = member.node_id if isinstance(member, RegisterNode) else member.gateway_id
        if member.protocol != PROTOCOL_VERSION:
            return (
                f"{name} speaks protocol version {member.protocol}, the scheduler {PROTOCOL_VERSION}; "
                "run the same release of DualPath everywhere"
            )
        if isinstance(member, RegisterNode) and member.block_tokens != self.block_tokens:
            return (
                f"{name} has blocks of {member.block_tokens} tokens, this cluster of {self.block_tokens}; "
                "give all processes the same block_tokens"
            )
        expected = self.fingerprint
        if expected is not None and member.fingerprint != expected:
            return (
                f"{name} serves a model with fingerprint {member.fingerprint}, this cluster {expected}: "
                "weights, dtype, block size or KV layout differ; start it with the cluster's model and dtype"
            )
        if isinstance(member, RegisterNode) and not member.engines:
            return f"{name} has no engines; start it with at least one"
        if isinstance(member, RegisterNode) and not _plausible(member.speed):
            return (
                f"{name} says that it reads {member.speed.read_tokens_per_s} and computes "
                f"{member.speed.compute_tokens_per_s} tokens a second; run `dualpath calibrate` there again"
            )
        return None

    def of(self, role: Role) -> Iterator[NodeRecord]:
        return (node for node in self.nodes.values() if node.role == role)

    def missing_role(self) -> Role | None:
        roles: tuple[Role, ...] = ("decode", "prefill")
        return next((role for role in roles if not any(self.of(role))), None)

    def too_long(self, prompt_tokens: int) -> str | None:
        """Why no pair of the registered nodes could ever serve a prompt of this length."""
        for node in self.nodes.values():
            if prompt_tokens >= node.info.max_context:
                return (
                    f"{prompt_tokens} tokens leave no room for an answer: "
                    f"the context holds {node.info.max_context}"
                )
        decoders = list(self.of("decode"))
        fitting = [
            node
            for node in decoders
            if node.info.buffer_slots * self.block_tokens >= prompt_tokens
            and any(engine.hbm_tokens > prompt_tokens for engine in node.info.engines)
        ]
        if decoders and not fitting:
            return (
                f"{prompt_tokens} tokens exceed the buffer or HBM of every decode node; "
                "raise decode_buffer or decode_hbm"
            )
        return None

    @property
    def largest_hbm_tokens(self) -> int:
        return max(
            (engine.hbm_tokens for node in self.of("decode") for engine in node.info.engines),
            default=0,
        )


def _plausible(speed: NodeSpeed) -> bool:
    return all(0 <= rate < inf for rate in (speed.read_tokens_per_s, speed.compute_tokens_per_s))
