"""`dualpath scale`: give a local cluster that runs more nodes, or fewer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from dualpath.cli.running import find_running
from dualpath.cli.words import NOT_RUNNING, WRONG_USE, complain
from dualpath.cluster.home import Home
from dualpath.cluster.plan import NodeRole
from dualpath.cluster.processes import alive
from dualpath.cluster.record import ClusterRecord, ServiceRecord
from dualpath.cluster.scaling import NODE_ROLES, Wanted, ask
from dualpath.cluster.stop import running_cluster
from dualpath.settings import load_settings

_FAILED = 1
_MARGIN_S = 10.0
_TICK_S = 0.05


def scale(config: Path | None, home: Path | None, prefill: int | None, decode: int | None) -> int:
    """None: as many as there are. Exit code: 0 they are there, 1 not in time, or one did not start, 2 wrong use, 3 no
    cluster runs."""
    found = find_running(config, home)
    if isinstance(found, int):
        return found
    place, record = found
    if record.state != "ready":
        complain(f"the cluster is {record.state}; only one that is ready can be scaled")
        return WRONG_USE
    if prefill is None and decode is None:
        complain("say how many: --prefill N, --decode N, or both")
        return WRONG_USE
    before = {service.name: alive(service.process) for service in record.services}
    asked = {"prefill": prefill, "decode": decode}
    wanted: dict[NodeRole, int] = {
        role: count for role in NODE_ROLES if (count := asked[role]) is not None
    }
    # What the cluster goes by, which this command's own settings need not be.
    its_own = load_settings(place.settings_file)
    limit_s = its_own.start_s + its_own.drain_s + _MARGIN_S
    if not ask(place, record, Wanted(prefill, decode)):
        complain("the cluster has ended meanwhile")
        return NOT_RUNNING
    for role, count in wanted.items():
        # Either way may take as long as a start.
        if (now := len(_working(record, role))) != count:
            print(f"{role} nodes: from {now} to {count} …", flush=True)
    return _wait(place, wanted, before, limit_s)


def _wait(
    home: Home, wanted: Mapping[NodeRole, int], before: Mapping[str, bool], limit_s: float
) -> int:
    """`before`: nodes that there were, and whether they lived."""
    deadline = time.monotonic() + limit_s
    told: set[str] = set()
    while (record := running_cluster(home)) is not None:
        for line in _news(record, before):
            if line not in told:
                told.add(line)
                print(line, flush=True)
        if ended := _ended_again(home, record, before):
            complain(ended)
            return _FAILED
        working = {role: _working(record, role) for role in wanted}
        if all(
            len(nodes) == wanted[role] and all(node.ready for node in nodes)
            for role, nodes in working.items()
        ):
            return 0
        if time.monotonic() > deadline:
            complain(f"not there within {limit_s:g} s; `dualpath status` shows what there is")
            return _FAILED
        time.sleep(_TICK_S)
    complain("the cluster has ended meanwhile")
    return NOT_RUNNING


def _ended_again(home: Home, record: ClusterRecord, before: Mapping[str, bool]) -> str:
    """What became of fresh nodes that are not there any more; empty where all are."""
    ended = [s for s in _nodes(record) if s.exit_status is not None and s.name not in before]
    if left := [service.name for service in ended if service.has_left]:
        return f"{', '.join(left)} had to leave again: somebody else asked for another number"
    if ended:
        names = ", ".join(service.name for service in ended)
        return f"{names} did not start; its log: {home.log_file(ended[0].name)}"
    return ""


def _news(record: ClusterRecord, before: Mapping[str, bool]) -> Iterable[str]:
    for service in _nodes(record):
        if service.name not in before and service.ready and service.exit_status is None:
            yield f"{service.name} serves"
        if before.get(service.name) and service.has_left:
            yield f"{service.name} has left the cluster"


def _nodes(record: ClusterRecord) -> list[ServiceRecord]:
    return [service for service in record.services if service.role in NODE_ROLES]


def _working(record: ClusterRecord, role: str) -> list[ServiceRecord]:
    """Those that drain still are among them: they have not left."""
    return [s for s in record.services if s.role == role and s.exit_status is None]
