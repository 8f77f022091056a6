"""When agents of an open loop arrive. Pure, seeded."""

from __future__ import annotations

import random
from collections.abc import Iterator

from dualpath.loadgen.replay.errors import ReplayError
from dualpath.loadgen.replay.options import OpenLoop
from dualpath.loadgen.traces.model import Trace


def arrivals(trace: Trace, load: OpenLoop) -> Iterator[float]:
    """Seconds from the beginning, ascending: Poisson, without an end where `agents` sets none; or the trace's own,
    over and over for more agents than it has. Raises ReplayError where it has none."""
    if load.aps is not None:
        return _poisson(load.aps, load.agents, load.seed)
    if not trace.timed:
        raise ReplayError(f"trace {trace.name} does not say when agents arrive; give a rate (aps)")
    return _recorded(trace, len(trace) if load.agents is None else load.agents)


def _poisson(aps: float, agents: int | None, seed: int) -> Iterator[float]:
    source, time_s, number = random.Random(seed), 0.0, 0
    while agents is None or number < agents:
        time_s += source.expovariate(aps)
        yield time_s
        number += 1


def _recorded(trace: Trace, agents: int) -> Iterator[float]:
    # A lap lasts as long as its arrivals and the mean gap between them.
    count = len(trace)
    lap_s = trace.span_s * (count / (count - 1) if count > 1 else 1)
    for number in range(agents):
        lap, index = divmod(number, count)
        yield lap * lap_s + (trace.trajectories[index].arrival_s or 0.0)
