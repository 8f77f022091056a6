"""Which processes a cluster is made of, in which order they start, and what losing one means. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dualpath.settings import Settings

ServiceRole = Literal["storage", "scheduler", "prefill", "decode", "gateway"]
NodeRole = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Service:
    """One process. `name` is also its node, shard or gateway id; `port` is asked for by gateways only."""

    role: ServiceRole
    name: str
    port: int | None = None


def start_stages(settings: Settings) -> list[list[Service]]:
    """Stages one after the other, the services of a stage together. Shards, where there are any, come first,
    because nodes and gateways are told their ports; gateways last, so that the API answers only once the rest is
    there."""

    def several(role: ServiceRole, count: int) -> list[Service]:
        return [Service(role, f"{role}-{number}") for number in range(count)]

    gateways = [
        Service("gateway", f"gateway-{number}", settings.port + number if settings.port else 0)
        for number in range(settings.gateways)
    ]
    shards = several("storage", settings.shards) if settings.store == "shards" else []
    return [
        [*shards, Service("scheduler", "scheduler")],
        several("prefill", settings.prefill) + several("decode", settings.decode),
        gateways,
    ]


_STOP_STAGES = (
    (("model", "gateway"), 0.45),
    (("prefill", "decode"), 0.8),
    (("scheduler",), 0.87),
    (("storage",), 0.94),
    (("nats",), 1.0),
)
"""Roles that stop together, clients' side first, and by when: as a share of the whole time. Gateways have most to
do, they let requests end. What a stage leaves is the next one's."""


def stop_stages(roles: Mapping[str, str]) -> list[tuple[list[str], float]]:
    """From `roles` (name → role): the names of each stage, and the share of the time after which what is left of
    them is killed."""
    stages = (
        ([name for name, role in roles.items() if role in together], share)
        for together, share in _STOP_STAGES
    )
    return [(names, share) for names, share in stages if names]


def meaning_of_loss(role: str, left: int) -> str:
    """A sentence for the log: what still works when one of `role` has died and `left` of it live."""
    if role == "nats":
        return (
            "the services cannot talk to each other: what was computing goes on, but its tokens cannot be "
            "delivered, and new requests get 503; restart the cluster"
        )
    if role == "scheduler":
        return "no new request can be placed: they wait, then get 503; restart the cluster"
    if role == "storage":
        if left:
            return "its blocks are recomputed where they are needed; the other shards go on"
        return "no KV-Cache can be read or kept: every prompt is computed in full"
    noun = {"prefill": "prefill node", "decode": "decode node", "gateway": "gateway"}[role]
    if left:
        rest = f"the {left} other {noun}{'s' if left > 1 else ''} go{'' if left > 1 else 'es'} on"
        if role == "gateway":
            return f"its clients' requests are lost; {rest}"
        return f"its requests start another attempt; {rest}"
    return f"it was the last {noun}: no request can be served; restart the cluster"


def describe_exit(status: int, signal_name: str | None) -> str:
    """`status` as `Popen.returncode` has it."""
    if status < 0:
        return f"was killed by {signal_name or f'signal {-status}'}"
    return "ended by itself" if status == 0 else f"failed with exit code {status}"
