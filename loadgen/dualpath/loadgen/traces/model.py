"""What is replayed: trajectories of turns, whatever they were made or read from. Pure.

A turn says how much it appends to its agent's context and how many tokens are generated then. What the appended
tokens are follows from numbers (`seed`, `blocks`), so that a trace of gigabytes of prompts is small; only recorded
conversations carry text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

FIRST_ROUND_TOKENS = 64
"""Length of the random round before a reused trajectory: a block, so no later block has a key of another agent."""

Message = dict[str, Any]
"""A chat's message in OpenAI's form."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of an agent, and the answer's length.

    The prompt is everything that the agent's earlier turns appended and generated, plus `append_tokens` new tokens
    (the paper's §6). `delay_s` passes between the last answer and this request: a tool at work.

    With `blocks` (hash ids, as Mooncake's traces have them) the appended tokens are those blocks'; the last one may
    be cut off by `append_tokens`. With `messages` they are that text, and `append_tokens` is an estimate; `answer`
    is then what was answered when the conversation was recorded.
    """

    append_tokens: int
    generate_tokens: int
    delay_s: float = 0.0
    blocks: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()
    answer: Message | None = None

    def __post_init__(self) -> None:
        if self.append_tokens < 0 or self.generate_tokens < 1:
            raise ValueError(
                f"a turn appends 0 tokens or more and generates 1 or more, "
                f"not {self.append_tokens} and {self.generate_tokens}"
            )
        if not (math.isfinite(self.delay_s) and self.delay_s >= 0):
            raise ValueError(f"a delay is 0 s or more, not {self.delay_s}")


@dataclass(frozen=True, slots=True)
class Trajectory:
    """An agent's life: at least one turn. `seed` decides the appended tokens of turns without blocks and messages:
    trajectories of the same seed append the same. `arrival_s` counts from the trace's beginning; None where the
    trace has no times. `tools` are offered in each request of a recorded conversation."""

    name: str
    turns: tuple[Turn, ...]
    seed: int = 0
    arrival_s: float | None = None
    tools: tuple[dict[str, Any], ...] = ()
    first_round: int | None = None
    """Not None: `turns[0]` is a random round that makes this agent differ from others of the same trajectory;
    the number is the round's own seed."""

    def __post_init__(self) -> None:
        if not self.turns:
            raise ValueError(f"trajectory {self.name} has no turns")
        if self.turns[0].append_tokens < 1:
            raise ValueError(f"the first turn of trajectory {self.name} appends nothing")
        if self.arrival_s is not None and not (
            math.isfinite(self.arrival_s) and self.arrival_s >= 0
        ):
            raise ValueError(f"trajectory {self.name} arrives at {self.arrival_s} s")

    @property
    def append_tokens(self) -> int:
        return sum(turn.append_tokens for turn in self.turns)

    @property
    def generate_tokens(self) -> int:
        return sum(turn.generate_tokens for turn in self.turns)

    @property
    def total_tokens(self) -> int:
        """The context's length at the end."""
        return self.append_tokens + self.generate_tokens

    def contexts(self) -> Iterator[int]:
        """Each turn's prompt length in tokens."""
        length = 0
        for turn in self.turns:
            length += turn.append_tokens
            yield length
            length += turn.generate_tokens

    def with_first_round(self, number: int) -> Trajectory:
        """The same trajectory after a random round of its own, which generates one token (paper, §6)."""
        first = Turn(FIRST_ROUND_TOKENS, 1)
        return replace(
            self,
            name=f"{self.name}+{number}",
            turns=(first, *self.turns),
            first_round=number,
        )

    def within(self, max_tokens: int) -> Trajectory | None:
        """Without the turns that do not fit a context of `max_tokens`; None where the first does not."""
        kept, length = 0, 0
        for turn in self.turns:
            length += turn.append_tokens + turn.generate_tokens
            if length > max_tokens:
                break
            kept += 1
        if kept == len(self.turns):
            return self
        return replace(self, turns=self.turns[:kept]) if kept else None


@dataclass(frozen=True, slots=True)
class Trace:
    """Trajectories, in the order of their arrival where they have times. `source` says in words where it is from,
    `block_tokens` how long the blocks of hash ids are."""

    name: str
    trajectories: tuple[Trajectory, ...]
    source: str = ""
    seed: int = 0
    block_tokens: int = 512

    def __post_init__(self) -> None:
        if not self.trajectories:
            raise ValueError(f"trace {self.name} has no trajectories")

    def __len__(self) -> int:
        return len(self.trajectories)

    @property
    def turns(self) -> int:
        return sum(len(trajectory.turns) for trajectory in self.trajectories)

    @property
    def timed(self) -> bool:
        """Do all trajectories say when they arrive?"""
        return all(t.arrival_s is not None for t in self.trajectories)

    @property
    def span_s(self) -> float:
        """From the trace's beginning to the last arrival; 0 without times."""
        return max((t.arrival_s or 0.0 for t in self.trajectories), default=0.0)

    def agent(self, number: int) -> Trajectory:
        """The trajectory of agent `number`, from 0 on without an end: those after the last trajectory reuse them,
        each after a random first round of its own, so that agents share no KV-Cache (paper, §6)."""
        lap, index = divmod(number, len(self.trajectories))
        trajectory = self.trajectories[index]
        return trajectory.with_first_round(number) if lap else trajectory

    def agents(self, count: int) -> tuple[Trajectory, ...]:
        """The trajectories of the first `count` agents."""
        return tuple(self.agent(number) for number in range(count))

    def repeated(self, samples: int) -> Trace:
        """Each trajectory `samples` times, one after the other and all equal: samples of the same prompts."""
        return replace(
            self,
            trajectories=tuple(
                replace(t, name=f"{t.name}#{sample}") if sample else t
                for t in self.trajectories
                for sample in range(samples)
            ),
        )

    def scaled(
        self,
        *,
        append: float = 1.0,
        generate: float = 1.0,
        turns: float = 1.0,
        time: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trace:
        """Lengths of appended and generated tokens times a factor; of each trajectory the first `turns` of its
        turns (a share up to 1); arrivals and delays times `time` (0.5 is twice as fast); nothing beyond a context
        of `max_tokens`. Blocks of hash ids scale with `append`; text does not, so that is refused.
        Raises ValueError where nothing would be left."""
        if min(append, generate, turns) <= 0 or turns > 1 or time < 0:
            raise ValueError("scales of lengths are above 0, of turns up to 1, of time 0 or more")
        if append != 1 and any(turn.messages for t in self.trajectories for turn in t.turns):
            raise ValueError("text of recorded conversations cannot be scaled; leave append at 1")
        kept = []
        block_tokens = max(round(self.block_tokens * append), 1)
        for trajectory in self.trajectories:
            count = max(math.ceil(len(trajectory.turns) * turns), 1)
            changed: Trajectory | None = replace(
                trajectory,
                turns=tuple(
                    _scaled(turn, append, generate, time, block_tokens)
                    for turn in trajectory.turns[:count]
                ),
                arrival_s=None if trajectory.arrival_s is None else trajectory.arrival_s * time,
            )
            if changed is not None and max_tokens is not None:
                changed = changed.within(max_tokens)
            if changed is not None:
                kept.append(changed)
        if not kept:
            raise ValueError(f"no trajectory of {self.name} fits a context of {max_tokens} tokens")
        return replace(self, trajectories=tuple(kept), block_tokens=block_tokens)


def _scaled(turn: Turn, append: float, generate: float, time: float, block_tokens: int) -> Turn:
    appended = max(round(turn.append_tokens * append), 1) if turn.append_tokens else 0
    blocks = turn.blocks
    if blocks:
        # As many blocks as before: rounding must neither run out of them nor leave one over.
        appended = min(
            max(appended, (len(blocks) - 1) * block_tokens + 1), len(blocks) * block_tokens
        )
    return replace(
        turn,
        append_tokens=appended,
        generate_tokens=max(round(turn.generate_tokens * generate), 1),
        delay_s=turn.delay_s * time,
    )
