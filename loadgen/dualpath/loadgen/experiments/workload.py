"""Workloads of experiments: stretches of published agents' lives, with what came before on storage already. Pure.

A whole trajectory has dozens to hundreds of turns, nearly all of them alike: a long context, a short appended part.
A *stretch* is some turns in a row from anywhere in a life, after a first turn that brings the context up to there.
What that first turn appends is stored beforehand (`contexts`), so that each turn, the first too, hits what it would
in the whole life. Turns of a stretch append and generate what all turns of all lives do on average: who has long
answers has few of them in a life, and ends no later for it; in a stretch of as many turns as the others' he would.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dualpath.loadgen.traces.model import Trace, Trajectory, Turn


@dataclass(frozen=True)
class Totals:
    """Of a trace, with blocks of `block_tokens` that are all kept: prompt tokens that hit (`hit_tokens`), the rest
    (`miss_tokens`), pairs of a computed token and one before it, turns, generated tokens, and the decode steps of the
    agent that has most of them: one for each token of an answer after the first."""

    turns: int
    hit_tokens: int
    miss_tokens: int
    pairs: int
    generate_tokens: int
    longest_steps: int
    resident_tokens: int = 0
    """Of each turn, its context times its decode steps: what decode memory holds, and for how many steps."""


def stretches(trace: Trace, agents: int, turns: int, seed: int) -> Trace:
    """`agents` trajectories of 1 + `turns` turns; shorter lives are taken whole. Which stretch is drawn by `seed`."""
    draw = random.Random(f"stretch {seed}")
    later = [turn for trajectory in trace.trajectories for turn in trajectory.turns[1:]]
    even = _even(later, turns)
    return replace(
        trace,
        name=f"{trace.name}, stretches of {turns} turns",
        trajectories=tuple(_stretch(t, even, draw) for t in trace.agents(agents)),
    )


def _stretch(trajectory: Trajectory, even: Sequence[Turn], draw: random.Random) -> Trajectory:
    last = max(len(trajectory.turns) - len(even), 1)
    start = draw.randrange(1, last + 1) if len(trajectory.turns) > 1 else 0
    before = trajectory.turns[:start]
    context = sum(turn.append_tokens + turn.generate_tokens for turn in before)
    first = Turn(context, 1) if before else trajectory.turns[0]
    rest = even[: len(trajectory.turns) - 1]
    return replace(trajectory, turns=(first, *rest), first_round=None)


def _even(turns: Sequence[Turn], count: int) -> list[Turn]:
    """`count` turns of the mean lengths of `turns`; what rounding takes from one the next ones get."""
    if not turns:
        return []
    appended = sum(turn.append_tokens for turn in turns) / len(turns)
    generated = sum(turn.generate_tokens for turn in turns) / len(turns)
    return [
        Turn(
            max(round((k + 1) * appended) - round(k * appended), 1),
            max(round((k + 1) * generated) - round(k * generated), 1),
        )
        for k in range(count)
    ]


def contexts(trace: Trace) -> Trace:
    """What to store beforehand: each trajectory's first turn."""
    return replace(
        trace,
        name=f"{trace.name}, contexts",
        trajectories=tuple(
            replace(t, turns=(replace(t.turns[0], generate_tokens=1),)) for t in trace.trajectories
        ),
    )


def scaled_turns(trace: Trace, *, append: float = 1.0, generate: float = 1.0) -> Trace:
    """What turns after the first append and generate, times a factor; the contexts stay."""

    def scaled(turn: Turn) -> Turn:
        return replace(
            turn,
            append_tokens=max(round(turn.append_tokens * append), 1),
            generate_tokens=max(round(turn.generate_tokens * generate), 1),
        )

    return replace(
        trace,
        trajectories=tuple(
            replace(t, turns=(t.turns[0], *(scaled(turn) for turn in t.turns[1:])))
            for t in trace.trajectories
        ),
    )


def longest(trajectories: Sequence[Trajectory]) -> int:
    """Tokens of the longest prompt and answer together."""
    return max(trajectory.total_tokens for trajectory in trajectories)


def totals(trajectories: Sequence[Trajectory], block_tokens: int, *, stored: bool = True) -> Totals:
    """What a perfect cache hits. `stored`: the first turns' contexts are on storage."""
    turns = hits = misses = pairs = generated = most = resident = 0
    for trajectory in trajectories:
        length = 0
        known = trajectory.turns[0].append_tokens if stored else 0
        for turn in trajectory.turns:
            length += turn.append_tokens
            # The last token of a prompt is always computed, and only full blocks are kept.
            hit = min(known, length - 1) // block_tokens * block_tokens
            miss = length - hit
            hits, misses, turns = hits + hit, misses + miss, turns + 1
            pairs += miss * hit + miss * (miss + 1) // 2
            resident += length * (turn.generate_tokens - 1)
            length += turn.generate_tokens
            known = length - 1
        generated += trajectory.generate_tokens
        most = max(most, trajectory.generate_tokens - len(trajectory.turns))
    return Totals(turns, hits, misses, pairs, generated, most, resident)
