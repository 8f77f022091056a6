"""Replay of traces against a server, in a closed or an open loop."""

from dualpath.loadgen.replay.engine import replay
from dualpath.loadgen.replay.errors import ReplayError
from dualpath.loadgen.replay.options import ClosedLoop, Load, OpenLoop, Slo, StopRules, Target
from dualpath.loadgen.replay.progress import Progress
from dualpath.loadgen.replay.records import (
    LAG_LIMIT_S,
    STOPPED,
    AgentRecord,
    ClientLag,
    Latencies,
    ReplayResult,
    TurnRecord,
)
from dualpath.loadgen.replay.rules import slo_misses
from dualpath.loadgen.replay.search import Capacity, Step, middle, search_aps

__all__ = [
    "LAG_LIMIT_S",
    "STOPPED",
    "AgentRecord",
    "Capacity",
    "ClientLag",
    "ClosedLoop",
    "Latencies",
    "Load",
    "OpenLoop",
    "Progress",
    "ReplayError",
    "ReplayResult",
    "Slo",
    "Step",
    "StopRules",
    "Target",
    "TurnRecord",
    "middle",
    "replay",
    "search_aps",
    "slo_misses",
]
