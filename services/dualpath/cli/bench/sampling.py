"""What a cluster does while it is measured: NICs and CPU, sampled in a thread."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from dualpath.cluster.record import ClusterRecord, ServiceRecord
from dualpath.loadgen.report.results import NicSeries
from dualpath.wire.types import NicUse, NodeStatus

EVERY_S = 0.5
_ANSWER_S = 2.0
_HERTZ = os.sysconf("SC_CLK_TCK")

_Flow = tuple[str, str, str]
"""Node, NIC, direction."""


@dataclass
class _Counted:
    """Both lanes' bytes at each sample."""

    limit_bytes_per_s: float
    at_s: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    high: int = 0


class Sampler:
    """Samples the nodes of a cluster every EVERY_S from `__enter__` to `__exit__`; then says what it saw."""

    def __init__(self, record: ClusterRecord) -> None:
        self._services = [s for s in record.services if s.ready and s.exit_status is None]
        self._connections = {
            service.name: HTTPConnection(
                "127.0.0.1", service.ready.http_port if service.ready else 0, timeout=_ANSWER_S
            )
            for service in self._services
            if service.role in ("prefill", "decode")
        }
        self._flows: dict[_Flow, _Counted] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bench sampler", daemon=True)
        self._began = 0.0
        self._cpu_s: dict[str, float] = {}
        self._busy = (0.0, 0.0)
        self.cpu = 0.0
        """Part of all cores that was busy, by whatever."""
        self.cpu_s: dict[str, float] = {}
        """CPU seconds by role; `client`: this process."""

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._busy = machine_cpu_s()
        self._cpu_s = self._cpu_by_role()
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        self._sample()
        for connection in self._connections.values():
            connection.close()
        (busy, every), (busy_then, every_then) = machine_cpu_s(), self._busy
        self.cpu = (busy - busy_then) / max(every - every_then, 1e-9)
        self.cpu_s = {
            role: spent - self._cpu_s.get(role, 0.0) for role, spent in self._cpu_by_role().items()
        }

    @property
    def began(self) -> float:
        """On the monotonic clock; series count from here."""
        return self._began

    def series(self) -> tuple[NicSeries, ...]:
        return tuple(
            NicSeries(
                node,
                nic,
                direction,
                counted.limit_bytes_per_s,
                tuple(round(at, 3) for at in counted.at_s[1:]),
                tuple(_rates(counted)),
                counted.high / counted.nbytes[-1] if counted.nbytes[-1] else 0.0,
            )
            for (node, nic, direction), counted in sorted(self._flows.items())
        )

    def _watch(self) -> None:
        while not self._end.wait(EVERY_S):
            self._sample()

    def _sample(self) -> None:
        for name, connection in self._connections.items():
            status = _ask(connection)
            at_s = time.monotonic() - self._began
            for nic, direction, uses in _by_direction(status.nics if status else ()):
                counted = self._flows.setdefault(
                    (name, nic, direction), _Counted(uses[0].limit_bytes_per_s)
                )
                counted.at_s.append(at_s)
                counted.nbytes.append(sum(use.nbytes for use in uses))
                counted.high = sum(use.nbytes for use in uses if use.lane == "high")

    def _cpu_by_role(self) -> dict[str, float]:
        spent = {"client": time.process_time()}
        for service in self._services:
            spent[service.role] = spent.get(service.role, 0.0) + _process_cpu_s(service)
        return spent


def _rates(counted: _Counted) -> list[float]:
    marks = list(zip(counted.at_s, counted.nbytes, strict=True))
    return [
        round((late - early) / max(until - since, 1e-6))
        for (since, early), (until, late) in pairwise(marks)
    ]


def _by_direction(nics: tuple[NicUse, ...]) -> list[tuple[str, str, list[NicUse]]]:
    lanes: dict[tuple[str, str], list[NicUse]] = {}
    for use in nics:
        lanes.setdefault((use.nic, use.direction), []).append(use)
    return [(nic, direction, uses) for (nic, direction), uses in lanes.items()]


def _ask(connection: HTTPConnection) -> NodeStatus | None:
    """None where it did not answer; the next sample dials anew."""
    try:
        connection.request("GET", "/status")
        return msgspec.json.decode(connection.getresponse().read(), type=NodeStatus)
    except (OSError, HTTPException, msgspec.MsgspecError):
        connection.close()
        return None


def _process_cpu_s(service: ServiceRecord) -> float:
    """Of all threads, ended ones too; 0 of a process that is gone."""
    try:
        text = Path(f"/proc/{service.process.pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _HERTZ


def machine_cpu_s() -> tuple[float, float]:
    """(busy, all) CPU seconds of the machine since it started."""
    fields = [int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / _HERTZ, sum(fields) / _HERTZ
