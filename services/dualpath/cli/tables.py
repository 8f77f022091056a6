"""`dualpath status` for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from dualpath.cluster.nats_server import NAME as NATS
from dualpath.cluster.processes import alive
from dualpath.cluster.record import ServiceRecord
from dualpath.cluster.status import Status
from dualpath.wire.control import ClusterStatus
from dualpath.wire.types import NodeStatus


def print_status(status: Status, console: Console | None = None) -> None:
    console = console or Console()
    record = status.record
    urls = " and ".join(record.base_urls) or "no gateway"
    console.print(
        f"{record.model} at {urls}; mode {record.mode}; {record.state}; "
        f"supervisor pid {record.supervisor.pid}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(_processes(status))
    console.print(_pools(status.processes))
    console.print(_nics(status.processes))
    if status.cluster is None:
        console.print(f"[bold red]{status.problem}[/]", highlight=False, soft_wrap=True)
        return
    cluster = status.cluster
    console.print(_nodes(cluster))
    console.print(
        f"{cluster.queued} requests queued, {cluster.running} running; "
        f"registered gateways: {', '.join(cluster.gateways) or 'none'}",
        highlight=False,
        soft_wrap=True,
    )


def new_table(title: str, *columns: str, numbers: int = 0) -> Table:
    """The last `numbers` columns are flush right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position >= len(columns) - numbers else "left")
    return table


def _processes(status: Status) -> Table:
    table = new_table("Processes", "name", "role", "state", "pid", "/metrics port", numbers=2)
    for service in status.record.services:
        port = service.ready.http_port if service.ready else 0
        state = _state(service, answers=service.name in status.processes)
        table.add_row(service.name, service.role, state, str(service.process.pid), str(port or "–"))
    return table


def _state(service: ServiceRecord, *, answers: bool) -> str:
    if service.has_left:
        return "left"
    if service.exit_status is not None:
        return f"[red]dead ({service.exit_status})[/]"
    if not alive(service.process):
        return "[red]dead[/]"
    if service.ready:
        return "ready" if answers else "[red]does not answer[/]"
    return "ready" if service.role == NATS else "starting"


def _nodes(cluster: ClusterStatus) -> Table:
    table = new_table(
        "Engines", "node", "role", "engine", "seen", "seq", "tok", "HBM free", "read_q", numbers=5
    )
    for node in cluster.nodes:
        for engine in node.engines:
            table.add_row(
                node.node_id,
                node.role,
                str(engine.index),
                f"{node.seconds_since_fetch:.1f} s ago",
                str(engine.seq),
                str(engine.tok),
                str(engine.hbm_free_tokens),
                str(node.status.read_q_tokens),
            )
    return table


def _pools(processes: Mapping[str, NodeStatus]) -> Table:
    table = new_table("Pools", "process", "pool", "used", "of", "waiting", numbers=3)
    for name, process in processes.items():
        for pool in process.pools:
            shown = readable_size if "_bytes" in pool.name else str
            total = shown(pool.total) if pool.total else "–"
            used = shown(pool.used) + (f" + {shown(pool.clean)} clean" if pool.clean else "")
            table.add_row(name, pool.name, used, total, str(pool.waiting))
    return table


def _nics(processes: Mapping[str, NodeStatus]) -> Table:
    table = new_table("NICs, bytes since start", "NIC", "lane", "sent", "received", numbers=2)
    for process in processes.values():
        moved: dict[tuple[str, str], dict[str, int]] = {}
        for nic in process.nics:
            moved.setdefault((nic.nic, nic.lane), {})[nic.direction] = nic.nbytes
        for (name, lane), directions in moved.items():
            table.add_row(
                name,
                lane,
                readable_size(directions.get("tx", 0)),
                readable_size(directions.get("rx", 0)),
            )
    return table


def readable_size(nbytes: int) -> str:
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
