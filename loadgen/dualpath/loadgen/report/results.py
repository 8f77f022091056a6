"""The results of an experiment, as they are kept in JSON. Pure but for reading and writing the file.

Times are emulated seconds unless a name says real; `Experiment.time` is how many of them a real second takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

VERSION = 1
MAX_FILE_BYTES = 256 << 20


class ReportError(Exception):
    """A file that holds no results; the text says what to do."""


class Gate(msgspec.Struct, frozen=True):
    """A condition without which a figure would be of something else. `said`: a sentence with figures."""

    name: str
    ok: bool
    said: str


class NicSeries(msgspec.Struct, frozen=True):
    """Bytes per second that a NIC moved in a direction, `at_s` being the ends of the intervals since the run began.
    `limit_bytes_per_s` 0: not emulated."""

    node: str
    nic: str
    direction: str
    limit_bytes_per_s: float
    at_s: tuple[float, ...]
    bytes_per_s: tuple[float, ...]
    high_share: float = 0.0
    """Part of all bytes that the high lane carried."""

    @property
    def role(self) -> str:
        return self.node.partition("-")[0]


def storage_nics(series: Sequence[NicSeries]) -> list[NicSeries]:
    """Of the nodes, what they read from storage."""
    return [s for s in series if s.nic.endswith(".snic") and s.direction == "rx"]


class Dist(msgspec.Struct, frozen=True):
    """Of a latency: how many, mean, and percentiles by name."""

    count: int = 0
    mean: float = 0.0
    percentiles: dict[str, float] = {}

    def p(self, percent: float) -> float:
        return self.percentiles.get(f"{percent:g}", 0.0)


class Run(msgspec.Struct, frozen=True):
    """One system on one cluster, once. `x` is the place on the experiment's axis, where it has one (agents per
    second, a factor); `bounds_s`: storage, compute, decode; `parts_s`: means of TTFT's parts; `hits`: prompt tokens
    by where their KV came from; `balance`: the largest over the mean of the SNICs that read, mean of short windows;
    `busy`: use of the SNICs of each role while the run was full."""

    system: str
    shape: str
    repetition: int
    x: float | None
    settings: dict[str, Any]
    jct_s: float
    duration_s: float
    turns: int
    wanted_turns: int
    ended: str
    latencies: dict[str, Dist]
    bounds_s: dict[str, float]
    parts_s: dict[str, float]
    hits: dict[str, int]
    nics: tuple[NicSeries, ...]
    busy: dict[str, float]
    balance: float
    cpu: float
    cpu_s: dict[str, float]
    client_lag_ms: float
    start_s: float
    gates: tuple[Gate, ...]
    errors: dict[str, int] = {}
    replay: dict[str, Any] = {}
    """All that the load generator says, but single turns."""
    met_slo: bool | None = None
    answers: dict[str, str] = {}
    """Digests of the generated ids by `agent.turn`, where runs are compared by them."""

    @property
    def valid(self) -> bool:
        return all(gate.ok for gate in self.gates)

    @property
    def bound_s(self) -> float:
        return max(self.bounds_s.values(), default=0.0)


class Claim(msgspec.Struct, frozen=True):
    """A published result and what was measured in its place."""

    what: str
    published: str
    measured: str
    good: bool | None = None
    """None: nothing was wanted of it."""


class Experiment(msgspec.Struct, frozen=True):
    """A whole experiment. `axis` names `Run.x` for people ("" where runs have none)."""

    kind: str
    title: str
    question: str
    axis: str
    command: str
    began: str
    duration_s: float
    machine: dict[str, Any]
    profile: dict[str, Any]
    time: float
    workload: dict[str, Any]
    runs: tuple[Run, ...]
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    slo: dict[str, float] = {}
    capacity: dict[str, float] = {}
    """Highest agents per second within the SLO, by system."""
    interrupted: bool = False
    version: int = VERSION

    def systems(self) -> list[str]:
        """In the order of their first run."""
        return list(dict.fromkeys(run.system for run in self.runs))

    def shapes(self) -> list[str]:
        return list(dict.fromkeys(run.shape for run in self.runs))

    def of(self, system: str, shape: str | None = None, x: float | None = None) -> list[Run]:
        return [
            run
            for run in self.runs
            if run.system == system
            and (shape is None or run.shape == shape)
            and (x is None or run.x == x)
        ]

    @property
    def valid(self) -> bool:
        return all(run.valid for run in self.runs)


def save(experiment: Experiment, path: Path) -> None:
    """Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(experiment), indent=1))


def load(path: Path) -> Experiment:
    """Raises ReportError where the file holds no results that this version can read."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ReportError(f"{path} is too large for results; name a file that `bench` wrote")
        found = msgspec.json.decode(path.read_bytes(), type=Experiment)
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ReportError(
            f"{path} holds no results of `dualpath bench` ({error}); name the JSON file that it wrote"
        ) from None
    if found.version != VERSION:
        raise ReportError(
            f"{path} has version {found.version} of results, this is for {VERSION}; measure again, or use "
            "the release that wrote it"
        )
    return found
