"""Replay of traces against a server, in a closed or an open loop."""

from dualpath.loadgen.replay.options import ClosedLoop, Load, OpenLoop, Slo, StopRules, Target
from dualpath.loadgen.replay.records import (
    STOPPED,
    AgentRecord,
    ClientLag,
    Latencies,
    ReplayResult,
    TurnRecord,
)

__all__ = [
    "STOPPED",
    "AgentRecord",
    "ClientLag",
    "ClosedLoop",
    "Latencies",
    "Load",
    "OpenLoop",
    "ReplayResult",
    "Slo",
    "StopRules",
    "Target",
    "TurnRecord",
]
