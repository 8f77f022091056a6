"""What `dualpath top` shows: two looks at a cluster, and what happened in between."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dualpath.cli.tables import readable_size
from dualpath.cluster.status import Status
from dualpath.wire.types import WAIT_BOUNDS_S, NicUse

BAR_WIDTH = 8
FULL_WIDTH = 78
"""Of the NICs' table. In less it goes without bars, and in less than that without waits: cut figures say nothing."""
_NO_BARS_WIDTH = FULL_WIDTH - BAR_WIDTH - 2
_SIDES = (("prefill", "PE read path"), ("decode", "DE read path"))
_PATHS = (
    ("prefill", "prefill node (PE)"),
    ("decode", "decode node (DE)"),
    ("split", "both (split)"),
    ("none", "nothing cached"),
)
_COLORS = {"high": "magenta", "low": "cyan"}


@dataclass(frozen=True)
class Look:
    """The cluster as it was at a time of the monotonic clock."""

    at_s: float
    status: Status

    def nics(self) -> Iterator[NicUse]:
        for process in self.status.processes.values():
            yield from process.nics

    def counter(self, name: str) -> int:
        """Summed over all processes."""
        return sum(process.counters.get(name, 0) for process in self.status.processes.values())


@dataclass(frozen=True)
class LaneRates:
    """One lane of a NIC in one direction between two looks; `waits` by WAIT_BOUNDS_S, and beyond."""

    bytes_per_s: float
    part_of_limit: float | None
    share: float
    waiting: int
    waiting_bytes: int
    waits: tuple[int, ...]

    def wait_s(self, part: float) -> float | None:
        """The time that `part` of the chunks waited at most, as fine as it is counted; None: there were none."""
        chunks = sum(self.waits)
        passed = 0
        for bound, count in zip((*WAIT_BOUNDS_S, float("inf")), self.waits, strict=False):
            passed += count
            if chunks and passed >= part * chunks:
                return bound
        return None


Flow = tuple[str, str, str]
"""NIC, lane, direction."""


def lane_rates(before: Look, now: Look) -> dict[Flow, LaneRates]:
    """What each NIC did in between; a process that was started anew counts from its start."""
    then = {(use.nic, use.lane, use.direction): use for use in before.nics()}
    took = max(now.at_s - before.at_s, 1e-9)
    moved: dict[Flow, int] = {}
    totals: dict[tuple[str, str], int] = {}
    uses = {(use.nic, use.lane, use.direction): use for use in now.nics()}
    for flow, use in uses.items():
        earlier = then.get(flow)
        if earlier is None or earlier.nbytes > use.nbytes:
            earlier = then[flow] = NicUse(*flow, 0)
        moved[flow] = use.nbytes - earlier.nbytes
        both = (use.nic, use.direction)
        totals[both] = totals.get(both, 0) + moved[flow]
    return {
        flow: LaneRates(
            bytes_per_s=moved[flow] / took,
            part_of_limit=moved[flow] / took / use.limit_bytes_per_s
            if use.limit_bytes_per_s
            else None,
            share=moved[flow] / total if (total := totals[use.nic, use.direction]) else 0.0,
            waiting=use.waiting,
            waiting_bytes=use.waiting_bytes,
            waits=_waits(then[flow], use),
        )
        for flow, use in uses.items()
    }


def _waits(then: NicUse, now: NicUse) -> tuple[int, ...]:
    earlier = then.waits or (0,) * len(now.waits)
    return tuple(late - early for late, early in zip(now.waits, earlier, strict=True))


def frame(before: Look, now: Look, width: int = FULL_WIDTH) -> RenderableType:
    """The whole picture, for so many columns."""
    status = now.status
    parts: list[RenderableType] = [_head(now), nics_table(before, now, width)]
    if status.cluster is None:
        parts.append(Text(status.problem or "the scheduler does not answer", style="bold red"))
    else:
        parts.append(queues_table(now))
    parts.append(paths_table(before, now))
    return Group(*parts)


def _head(now: Look) -> Text:
    record, cluster = now.status.record, now.status.cluster
    text = f"{record.model}, mode {record.mode}, {record.state}"
    if cluster is not None:
        text += f"; {cluster.running} requests running, {cluster.queued} queued"
    silent = [
        service.name
        for service in record.services
        if service.ready and service.name not in now.status.processes
    ]
    head = Text(text)
    if silent:
        head.append(f"; no answer from {', '.join(silent)}", style="bold red")
    return head


def nics_table(before: Look, now: Look, width: int = FULL_WIDTH) -> Table:
    """A line for each NIC, lane and direction. High lanes that have never moved anything are left out."""
    rates = lane_rates(before, now)
    table = _table("NICs, by lane and direction")
    for name in ("NIC", "lane", ""):
        table.add_column(name, no_wrap=True)
    for name in ("moves", "of"):
        table.add_column(name, justify="right", no_wrap=True)
    bars, waits = width >= FULL_WIDTH, width >= _NO_BARS_WIDTH
    if bars:
        table.add_column("share", width=BAR_WIDTH, no_wrap=True)
    for name in ("queued", "wait p99") if waits else ("queued",):
        table.add_column(name, justify="right", no_wrap=True)
    ever = {(use.nic, use.lane) for use in now.nics() if use.nbytes or use.waiting}
    shown = [flow for flow in rates if flow[1] == "low" or flow[:2] in ever]
    above: tuple[str, ...] = ("", "")
    for flow in sorted(shown, key=lambda flow: (*_nic_order(flow[0]), flow[1], flow[2])):
        nic, lane, direction = flow
        same_nic, same_lane = above[0] == nic, above == (nic, lane)
        table.add_row(
            "" if same_nic else nic,
            "" if same_lane else lane,
            "in" if direction == "rx" else "out",
            *_cells(rates[flow], lane, bars=bars, waits=waits),
        )
        above = (nic, lane)
    return table


def _cells(rates: LaneRates, lane: str, *, bars: bool, waits: bool) -> list[RenderableType]:
    part = "" if rates.part_of_limit is None else f"{rates.part_of_limit:.0%}"
    bar = Bar(1.0, 0, rates.share, width=BAR_WIDTH, color=_COLORS.get(lane, "white"))
    queued = f"{rates.waiting}: {readable_size(rates.waiting_bytes)}" if rates.waiting else "0"
    return [
        f"{readable_size(int(rates.bytes_per_s))}/s",
        part,
        *([bar] if bars else []),
        queued,
        *([_wait(rates.wait_s(0.99))] if waits else []),
    ]


def _wait(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds == float("inf"):
        return f"> {WAIT_BOUNDS_S[-1]:g} s"
    return "0" if not seconds else f"≤ {seconds * 1000:g} ms"


def queues_table(now: Look) -> Table:
    """Read queues and engines' loads, as the scheduler knows them (the paper's `read_q`, `seq`, `tok`)."""
    table = _table("Read queues, tokens")
    table.add_column("node", no_wrap=True)
    table.add_column("read_q", justify="right")
    table.add_column("", width=BAR_WIDTH)
    for name in ("seq", "tok", "HBM free"):
        table.add_column(name, justify="right")
    cluster = now.status.cluster
    nodes = cluster.nodes if cluster is not None else ()
    most = max((node.status.read_q_tokens for node in nodes), default=0) or 1
    for node in nodes:
        queued = node.status.read_q_tokens
        table.add_row(
            node.node_id,
            str(queued),
            Bar(most, 0, queued, width=BAR_WIDTH, color="yellow"),
            str(sum(engine.seq for engine in node.engines)),
            str(sum(engine.tok for engine in node.engines)),
            str(sum(engine.hbm_free_tokens for engine in node.engines)),
        )
    return table


def paths_table(before: Look, now: Look) -> Table:
    """Which side reads: bytes into the storage NICs of each, and prefills by the read path of their hits."""
    rates = lane_rates(before, now)
    reads = {
        side: sum(
            rate.bytes_per_s
            for (nic, _, direction), rate in rates.items()
            if nic.startswith(side) and nic.endswith(".snic") and direction == "rx"
        )
        for side, _ in _SIDES
    }
    table = _table("Read paths")
    table.add_column("hits read by", no_wrap=True)
    table.add_column("into SNICs", justify="right", no_wrap=True)
    table.add_column("", width=BAR_WIDTH)
    table.add_column("prefills", justify="right")
    table.add_column("since start", justify="right")
    most = max(reads.values()) or 1.0
    for path, name in _PATHS:
        total = now.counter(f"path_{path}")
        lately = max(total - before.counter(f"path_{path}"), 0)
        into = reads.get(path)
        bar: RenderableType = "" if into is None else Bar(most, 0, into, width=BAR_WIDTH)
        rate = "" if into is None else f"{readable_size(int(into))}/s"
        table.add_row(name, rate, bar, str(lately), str(total))
    return table


def _nic_order(nic: str) -> tuple[object, ...]:
    """Prefill nodes, decode nodes, shards; a node's SNIC before its CNICs; numbers by value."""
    roles = ("prefill", "decode", "storage")
    role = next((place for place, name in enumerate(roles) if nic.startswith(name)), len(roles))
    node, _, kind = nic.partition(".")
    return role, _numbers(node), not kind.startswith("snic"), _numbers(kind)


def _numbers(name: str) -> Sequence[tuple[int, str]]:
    parts: Iterable[str] = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
