"""The highest arrival rate within an SLO."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dualpath.loadgen.replay.options import Slo
from dualpath.loadgen.replay.records import ReplayResult
from dualpath.loadgen.replay.rules import slo_misses


@dataclass(frozen=True)
class Step:
    """One run of a search; `misses` is empty where the SLO was met."""

    aps: float
    misses: list[str]
    result: ReplayResult

    @property
    def met(self) -> bool:
        return not self.misses


@dataclass(frozen=True)
class Capacity:
    """`aps`: the highest rate that met the SLO, None where none did; `bounded`: a higher one was seen to miss it."""

    aps: float | None
    bounded: bool
    steps: list[Step]


def middle(good: float, bad: float, precision: float) -> float | None:
    """The rate to try between one that met the SLO and a higher one that did not; None where those differ by a factor
    of `1 + precision` at most."""
    return math.sqrt(good * bad) if bad / good > 1 + precision else None


async def search_aps(
    run: Callable[[float], Awaitable[ReplayResult]],
    slo: Slo,
    *,
    low: float,
    high: float,
    precision: float = 0.1,
    on_step: Callable[[Step], None] | None = None,
) -> Capacity:
    """Find, between two rates, the highest that meets the SLO, to within a factor of `1 + precision`.

    `run` replays at a rate, from a state that no earlier run has warmed. `high` is tried only after `low` has met the
    SLO; then the geometric middle, and so on. Raises ValueError for bounds that are none."""
    if not (0 < low <= high and math.isfinite(high) and precision > 0):
        raise ValueError(
            f"rates go from more than 0 upwards, to within more than 0, not {low}–{high}"
        )
    steps: list[Step] = []

    async def met(aps: float) -> bool:
        result = await run(aps)
        steps.append(Step(aps, slo_misses(slo, result), result))
        if on_step is not None:
            on_step(steps[-1])
        return steps[-1].met

    if not await met(low):
        return Capacity(None, True, steps)
    if high == low or await met(high):
        return Capacity(high, False, steps)
    good, bad = low, high
    while (aps := middle(good, bad, precision)) is not None:
        if await met(aps):
            good = aps
        else:
            bad = aps
    return Capacity(good, True, steps)
