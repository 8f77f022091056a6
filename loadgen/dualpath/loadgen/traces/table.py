"""Trajectories with the statistics of the paper's Table 2. Pure, seeded.

The table gives means only, and they say something about the spread: turns × (append + generated) is 1.6 to 1.7 times
the total, so append and generated are means of each trajectory's mean, and trajectories with few turns have long
ones. That is what agents do whose total is bounded by MaxLen: totals T lie close below it, while the number of
turns N varies much. Where T and N are independent, mean(T / N) / (mean(T) / mean(N)) = mean(N) · mean(1 / N), which
is exp(σ²) for a log-normal N; σ is about 0.7. And the mean context is 0.58 to 0.60 of the total, not half: the
first turn, which brings instructions and the task, appends about a fifth of everything.

So a trajectory has a total (logit-normal below MaxLen), a number of turns (log-normal), a share of generated tokens
and a first turn's share (both logit-normal), and log-normal lengths of its turns. Draws are stratified, and the free
parameters are solved for the drawn sample, so that its means meet the table's. "Append" counts the first turn.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul
from statistics import NormalDist, fmean

from dualpath.loadgen.traces.lines import MAX_TOKENS
from dualpath.loadgen.traces.model import Trace, Trajectory, Turn

_TOTAL_SPREAD = 1.0
_SHARE_SPREAD = 0.35
_APPEND_SPREAD, _GENERATE_SPREAD = 1.0, 0.8
_MAX_TRAJECTORIES = 1_000_000
_MAX_TURNS = 2_000_000
"""Of all trajectories together: half a GB as they are made."""


@dataclass(frozen=True)
class TableRow:
    """Means of a column of the paper's Table 2, in tokens but for `turns`; 500 trajectories each."""

    max_tokens: int
    turns: float
    append: float
    generate: float
    total: float
    context: float

    def scaled(self, lengths: float, turns: float) -> TableRow:
        """All lengths of contexts times `lengths`, the number of turns times `turns`; a turn's lengths follow."""
        per_turn = lengths / turns
        return TableRow(
            round(self.max_tokens * lengths),
            self.turns * turns,
            self.append * per_turn,
            self.generate * per_turn,
            self.total * lengths,
            self.context * lengths,
        )


TABLE_2 = {
    "32K": TableRow(32 << 10, 60, 608, 148, 28639, 17183),
    "48K": TableRow(48 << 10, 106, 474, 172, 42607, 25120),
    "64K": TableRow(64 << 10, 157, 429, 176, 55958, 32721),
}


def make_trace(
    max_len: str = "64K",
    *,
    trajectories: int = 500,
    seed: int = 0,
    lengths: float = 1.0,
    turns: float = 1.0,
) -> Trace:
    """A trace like Table 2's `max_len`: over 500 trajectories every mean is within 2 % of it.

    `lengths` scales all contexts, `turns` the number of turns (0.1 each: a tenth of the turns, as long as before).
    Raises ValueError for what cannot be made, such as turns of less than two tokens."""
    if max_len not in TABLE_2:
        raise ValueError(f"Table 2 has {', '.join(TABLE_2)}, not {max_len}")
    if not 1 <= trajectories <= _MAX_TRAJECTORIES:
        raise ValueError(f"1 to {_MAX_TRAJECTORIES} trajectories can be made, not {trajectories}")
    if not (math.isfinite(lengths) and math.isfinite(turns) and lengths > 0 and turns > 0):
        raise ValueError("scales are more than 0")
    if lengths * TABLE_2[max_len].max_tokens > MAX_TOKENS:
        raise ValueError(f"contexts end at {MAX_TOKENS} tokens: lengths × {lengths:g} is too much")
    row = TABLE_2[max_len].scaled(lengths, turns)
    if row.turns < 1 or row.append < 4 or row.generate < 1:
        raise ValueError(
            f"{row.turns:.2g} turns of {row.append:.2g} appended and {row.generate:.2g} generated tokens "
            "are too few on average: at least 1, 4 and 1 are needed; scale less"
        )
    if row.turns * trajectories > _MAX_TURNS:
        raise ValueError(
            f"{trajectories} trajectories of {row.turns:,.0f} turns are {row.turns * trajectories:,.0f} turns; up to "
            f"{_MAX_TURNS:,} can be made: ask for fewer trajectories, or scale turns less"
        )
    shapes = _shapes(row, trajectories, random.Random(seed))
    made = tuple(
        Trajectory(f"{max_len}-{number}", _turns(shape, random.Random(f"{seed}/{number}")), number)
        for number, shape in enumerate(shapes)
    )
    scale = "" if lengths == turns == 1 else f", lengths × {lengths!r}, turns × {turns!r}"
    return Trace(
        f"{max_len} of Table 2{scale}",
        made,
        source=f"made: Wu et al., arXiv 2602.21548, Table 2, MaxLen {max_len}{scale}, seed {seed}",
        seed=seed,
    )


_SOURCE = re.compile(
    r"^made: .*MaxLen (\d+K)(?:, lengths × ([\d.e+-]+), turns × ([\d.e+-]+))?, seed"
)


def row_of(trace: Trace) -> TableRow | None:
    """The (scaled) row of Table 2 that a trace was made after; None of other traces."""
    found = _SOURCE.match(trace.source)
    if found is None or found[1] not in TABLE_2:
        return None
    return TABLE_2[found[1]].scaled(float(found[2] or 1), float(found[3] or 1))


@dataclass(frozen=True)
class _Shape:
    """One trajectory's sums in tokens: of all generated, of the first append, of the other appends."""

    turns: int
    generated: int
    first: int
    others: int


def _shapes(row: TableRow, count: int, source: random.Random) -> list[_Shape]:
    normals = [_stratified(count, source) for _ in range(4)]
    filled = row.total / row.max_tokens
    offset = _solve(lambda x: fmean(_logistic(x + _TOTAL_SPREAD * z) for z in normals[0]), filled)
    totals = [row.max_tokens * _logistic(offset + _TOTAL_SPREAD * z) for z in normals[0]]
    numbers = _numbers(row, totals, normals[1])
    generated = row.generate / (row.append + row.generate)
    shares = _shares(
        normals[2], row.generate, [t / n for t, n in zip(totals, numbers, strict=True)]
    )
    # Mean context of N turns in expectation: first + (others + (N - 1) / N · 2 · generated / 2) / 2.
    halves = fmean(
        t * (1 - g) / 2 + t * g * (n - 1) / (2 * n)
        for t, g, n in zip(totals, shares, numbers, strict=True)
    )
    first = 2 * (row.context - halves) / fmean(totals)
    first = min(max(first, 0.01), 0.9 * (1 - generated))
    firsts = _shares(normals[3], first, [1.0] * count)
    return [
        _shape(round(t), n, g, f)
        for t, n, g, f in zip(totals, numbers, shares, firsts, strict=True)
    ]


def _numbers(row: TableRow, totals: Sequence[float], normals: Sequence[float]) -> list[int]:
    """Of turns: their mean is the table's, and so is that of total / turns."""

    def drawn(spread: float) -> list[int]:
        def counts(location: float) -> list[int]:
            return [
                min(max(round(math.exp(location + spread * z)), 1), max(int(t / 4), 1))
                for z, t in zip(normals, totals, strict=True)
            ]

        return counts(_solve(lambda x: fmean(counts(x)), row.turns, steps=30))

    def per_turn(spread: float) -> float:
        return fmean(t / n for t, n in zip(totals, drawn(spread), strict=True))

    return drawn(_solve(per_turn, row.append + row.generate, 0.0, 2.0, 20))


def _shares(normals: Sequence[float], mean: float, of: Sequence[float]) -> list[float]:
    """Shares whose products with `of` have the given mean."""

    def drawn(location: float) -> list[float]:
        return [_logistic(location + _SHARE_SPREAD * z) for z in normals]

    return drawn(_solve(lambda x: fmean(map(mul, of, drawn(x))), mean))


def _shape(total: int, turns: int, generated_share: float, first_share: float) -> _Shape:
    generated = min(max(round(total * generated_share), turns), total - turns)
    rest = total - generated
    if turns == 1:
        return _Shape(1, generated, rest, 0)
    first = min(max(round(total * first_share), 1), rest - (turns - 1))
    return _Shape(turns, generated, first, rest - first)


def _turns(shape: _Shape, source: random.Random) -> tuple[Turn, ...]:
    generated = _split(shape.generated, shape.turns, _GENERATE_SPREAD, source)
    others = _split(shape.others, shape.turns - 1, _APPEND_SPREAD, source)
    return tuple(map(Turn, [shape.first, *others], generated))


def _split(total: int, parts: int, spread: float, source: random.Random) -> list[int]:
    """`parts` numbers of 1 or more, log-normal before rounding, whose sum is `total` (at least `parts`)."""
    if not parts:
        return []
    weights = [math.exp(source.gauss(0, spread)) for _ in range(parts)]
    rest, scale = total - parts, (total - parts) / math.fsum(weights)
    split = [1 + int(weight * scale) for weight in weights]
    # What rounding down left goes to the first ones, which are as random as any.
    for number in range(rest - (sum(split) - parts)):
        split[number % parts] += 1
    return split


def _stratified(count: int, source: random.Random) -> list[float]:
    """Standard normal, one from each of `count` equally probable parts, in random order."""
    normal = NormalDist()
    drawn = [normal.inv_cdf((i + source.uniform(0.1, 0.9)) / count) for i in range(count)]
    source.shuffle(drawn)
    return drawn


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _solve(
    of: Callable[[float], float],
    wanted: float,
    low: float = -20.0,
    high: float = 20.0,
    steps: int = 40,
) -> float:
    """Where the increasing `of` has the wanted value, by bisection; else the nearer end."""
    for _ in range(steps):
        middle = (low + high) / 2
        if of(middle) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2
