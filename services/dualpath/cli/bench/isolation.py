"""`dualpath bench isolation`: do bursts of model execution feel KV traffic on the same NIC? (paper §4)"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dualpath.cli.bench.isolation_member import (
    CASES,
    Case,
    Measured,
    Members,
    Shape,
    bursts_of,
)
from dualpath.cli.bench.plot import distribution_svg
from dualpath.cli.started import ends_in_order
from dualpath.cli.words import INTERRUPTED, WRONG_USE, complain
from dualpath.settings.units import parse_bytes, parse_rate

WANTED_P50 = 1.1
WANTED_CHUNKS = 2.0


@dataclass(frozen=True)
class Figures:
    """Of one case: seconds of all bursts, sorted; the low traffic per member; CPU of all members, in cores."""

    bursts_s: list[float]
    low_bytes_per_s: float
    cores: float

    @classmethod
    def of(cls, rounds: Sequence[Sequence[Measured]]) -> Figures:
        every = [measured for members in rounds for measured in members]
        return cls(
            bursts_of(rounds),
            sum(measured.low_bytes_per_s for measured in every) / len(every),
            sum(measured.cpu_share for measured in every) / len(rounds),
        )

    def quantile(self, share: float) -> float:
        """The time that `share` of the bursts do not exceed."""
        return self.bursts_s[max(math.ceil(share * len(self.bursts_s)) - 1, 0)]


_WRITE_BYTES = 1 << 20
_WRITES = 8
_MAX_BYTES = 64 << 20
_PAUSE_S = 0.005


def isolation(
    bandwidth: str,
    quantum: str,
    piece: str,
    engines: int,
    rounds: int,
    bursts: int,
    plot: Path | None,
) -> int:
    """Measure, print, and draw to `plot`. Exit code 0 also where the goal is missed: it is a measurement."""
    try:
        shape = Shape(
            members=engines,
            bytes_per_s=parse_rate(bandwidth),
            quantum=parse_bytes(quantum),
            piece=parse_bytes(piece),
            write=_WRITE_BYTES,
            writes=_WRITES,
            pause_s=_PAUSE_S,
        )
        if max(shape.quantum, shape.piece) > _MAX_BYTES:
            raise ValueError(f"quantum and piece are {_MAX_BYTES >> 20} MiB at most")
        if plot is not None:
            plot.open("ab").close()
    except ValueError as error:
        complain(str(error))
        return WRONG_USE
    except OSError as error:
        complain(f"--plot {plot} cannot be written ({error.strerror}); name another file")
        return WRONG_USE
    try:
        with ends_in_order():
            print(_heading(shape, rounds * bursts), flush=True)
            figures = measure(shape, rounds, bursts)
    except KeyboardInterrupt:
        complain("interrupted: a part of the bursts says nothing, so no figures")
        return INTERRUPTED
    except RuntimeError as error:
        complain(str(error))
        return 1
    for line in table(shape, figures):
        print(line)
    if plot is not None:
        title = (
            f"AllToAll bursts of {shape.burst_s * 1e3:.2f} ms beside saturating KV traffic, "
            f"{shape.members} engines, CNICs of {shape.bytes_per_s / 1e6:g} MB/s"
        )
        series = {
            f"{case}: p50 {f.quantile(0.5) * 1e3:.2f}, p99 {f.quantile(0.99) * 1e3:.2f} ms": f.bursts_s
            for case, f in figures.items()
        }
        plot.write_text(distribution_svg(series, title))
        print(f"plot: {plot}")
    return 0


def measure(shape: Shape, rounds: int, bursts: int) -> dict[Case, Figures]:
    """Cases take turns, so that whatever else the machine does meets all of them."""
    found: dict[Case, list[list[Measured]]] = {case: [] for case in CASES}
    with Members(shape) as members:
        for number in range(rounds):
            for case in CASES:
                found[case].append(members.measure(case, bursts, number))
    return {case: Figures.of(measured) for case, measured in found.items()}


def table(shape: Shape, figures: dict[Case, Figures]) -> list[str]:
    lines = ["case          p50 ms    p99 ms    max ms   low traffic   CPU"]
    for case, found in figures.items():
        p50, p99, longest = (found.quantile(share) * 1e3 for share in (0.5, 0.99, 1.0))
        lines.append(
            f"{case:10} {p50:9.3f} {p99:9.3f} {longest:9.3f}   "
            f"{found.low_bytes_per_s / 1e6:6.1f} MB/s   {found.cores:.2f} cores"
        )
    base = figures["baseline"]
    for case, found in figures.items():
        if case != "baseline":
            ratio = found.quantile(0.5) / base.quantile(0.5)
            chunks = (found.quantile(0.99) - base.quantile(0.99)) / shape.chunk_s
            lines.append(f"{case:10} p50 {ratio:.2f} × baseline, p99 baseline {chunks:+.1f} chunks")
    lines.append(f"wanted of lanes on: {WANTED_P50:g} × and {WANTED_CHUNKS:+g} chunks at most")
    return lines


def _heading(shape: Shape, bursts: int) -> str:
    return (
        f"{time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"{shape.members} engines in processes of their own, CNICs of {shape.bytes_per_s / 1e6:g} MB/s, "
        f"quantum {shape.quantum} bytes (a chunk takes {shape.chunk_s * 1e3:.3f} ms)\n"
        f"{bursts} bursts a case, each of {shape.piece} bytes to each other engine "
        f"({shape.burst_s * 1e3:.2f} ms on the wire), about {shape.pause_s * 1e3:g} ms apart; "
        f"{shape.writes} low writes of {shape.write} bytes under way to each other engine"
    )
