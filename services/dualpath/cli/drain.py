"""`dualpath drain`: let a node of a local cluster finish what it has, and leave."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

from dualpath.cli.running import find_running
from dualpath.cli.words import WRONG_USE, complain
from dualpath.cluster.home import Home
from dualpath.cluster.processes import alive
from dualpath.cluster.record import ClusterRecord, ServiceRecord
from dualpath.cluster.scaling import Wanted, ask
from dualpath.cluster.stop import running_cluster
from dualpath.settings import load_settings

_FAILED = 1
_MARGIN_S = 10.0
_TICK_S = 0.1


def drain(config: Path | None, home: Path | None, name: str) -> int:
    """Exit code: 0 it has left, 1 it has not in time, 2 there is no such node, 3 no cluster runs."""
    found = find_running(config, home)
    if isinstance(found, int):
        return found
    place, record = found
    nodes = {s.name: s for s in record.services if s.role in ("prefill", "decode")}
    node = nodes.get(name)
    living = sorted(n for n, service in nodes.items() if alive(service.process))
    if node is None or name not in living:
        known = ", ".join(living) or "none"
        complain(f"no node {name} of this cluster runs; those that do: {known}")
        return WRONG_USE
    if problem := _last_of_its_kind(record, node):
        complain(problem)
        return WRONG_USE
    # What the nodes go by, which this command's own settings need not be.
    its_own = load_settings(place.settings_file)
    limit_s = its_own.drain_s + _MARGIN_S
    print(f"{name} finishes what it has …", flush=True)
    if problem := _let_go(place, record, node, limit_s):
        complain(problem)
        return _FAILED
    print(f"{name} has left the cluster")
    return 0


def _last_of_its_kind(record: ClusterRecord, node: ServiceRecord) -> str | None:
    others = [
        s
        for s in record.services
        if s.role == node.role and s.name != node.name and alive(s.process)
    ]
    if others:
        return None
    return (
        f"{node.name} is the last {node.role} node: without it no request is served; "
        "`dualpath down` stops the cluster"
    )


def _let_go(home: Home, record: ClusterRecord, node: ServiceRecord, limit_s: float) -> str | None:
    """Have the supervisor ask it to go, and wait; None: it has left, else why it has not."""
    try:
        handle = os.pidfd_open(node.process.pid)
    except ProcessLookupError:
        return None
    try:
        if not ask(home, record, Wanted(leave=(node.name,))):
            return None
        deadline = time.monotonic() + limit_s
        while not select.select([handle], [], [], _TICK_S)[0]:
            # The others may have been told to go before, and the last one is not.
            now = running_cluster(home)
            if now is not None and (problem := _last_of_its_kind(now, node)):
                return problem
            if time.monotonic() > deadline:
                return f"{node.name} has not ended within {limit_s:g} s; `dualpath status` shows what it holds"
        return None
    finally:
        os.close(handle)
