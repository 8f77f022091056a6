"""What experiments are asked for, and what they are made from: a profile, and stretches of agents' lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dualpath.cli.bench.experiment import Plan
from dualpath.cli.bench.measure import Cell
from dualpath.loadgen.experiments.systems import System, modes, shape, shape_name
from dualpath.loadgen.experiments.workload import longest, stretches, totals
from dualpath.loadgen.replay import ClosedLoop
from dualpath.loadgen.traces import Trace, make_trace
from dualpath.settings.hardware import HardwareProfile
from dualpath.settings.profiles import profile_named

_ROOM_TOKENS = 8


@dataclass(frozen=True)
class Options:
    """What all experiments take; None: the experiment's own default."""

    profile: str
    trace: str = "64K"
    agents: int | None = None
    """Emulated agents."""
    turns: int = 2
    """Of a stretch, after the one that brings the context."""
    repetitions: int = 1
    seed: int = 0
    systems: str | None = None
    shapes: str | None = None
    values: str | None = None
    """Places on the experiment's axis."""

    def chosen_systems(self, default: str) -> list[System]:
        return modes(self.systems or default)

    def chosen_shapes(self, default: str) -> list[tuple[int, int]]:
        return [shape(text) for text in (self.shapes or default).split(",")]

    def axis(self, default: str) -> list[float]:
        """Raises ValueError for what is no number above 0."""
        try:
            values = sorted(float(text) for text in (self.values or default).split(","))
        except ValueError:
            values = [0.0]
        if not all(0 < value <= MAX_VALUE for value in values):
            raise ValueError(
                f"{self.values!r} are no numbers above 0 (and up to {MAX_VALUE:g}); write 0.5,1,2"
            )
        return values


MAX_VALUE = 1e6
"""Of a place on an axis."""


class Workbench:
    """A profile and the stretches that its clusters are given."""

    def __init__(
        self, options: Options, real_agents: float | None, *, at_most: int | None = None
    ) -> None:
        """Where the options name no number of agents there are as many emulated ones as stand for `real_agents`
        (None: for any number), up to `at_most` (None: the profile's). Raises ValueError for a profile or a trace that
        there is not."""
        self.options = options
        self.profile: HardwareProfile = profile_named(options.profile)
        scale = self.profile.scale
        most = self.profile.default_agents if at_most is None else at_most
        wanted = most if real_agents is None else min(scale.agents(real_agents), most)
        self.agents = options.agents or wanted
        lengths = 1 / scale.tokens_each
        whole = make_trace(
            options.trace, trajectories=max(self.agents, 1), seed=options.seed, lengths=lengths
        )
        self.trace = stretches(whole, self.agents, options.turns, options.seed)

    def settings(self, *traces: Trace) -> dict[str, Any]:
        """Of the profile, with room for the longest of the traces."""
        every = [t for trace in (self.trace, *traces) for t in trace.trajectories]
        return self.profile.settings(longest(every) + _ROOM_TOKENS)

    def workload(self) -> dict[str, Any]:
        found = totals(self.trace.trajectories, self.profile.settings(2)["block_tokens"])
        prompt = found.hit_tokens + found.miss_tokens
        return {
            "trace": f"{self.options.trace} of the paper's table 2, seed {self.options.seed}",
            "agents": self.agents,
            "agents that they stand for": round(self.agents * self.profile.scale.share),
            "turns of an agent": 1 + self.options.turns,
            "turns": found.turns,
            "prompt tokens that can hit": f"{found.hit_tokens / prompt:.1%}",
            "bytes to read": found.hit_tokens * self.profile.token_bytes,
            "mean context in real tokens": round(
                prompt / found.turns * self.profile.scale.tokens_each
            ),
        }

    def notes(self) -> tuple[str, ...]:
        scale = self.profile.scale
        units = (
            f"A node here is 1/{scale.share:g} of a real one and serves 1/{scale.share:g} of the agents; a byte "
            f"stands for {scale.bytes_each:g} real ones, a token for {scale.tokens_each}, and a real second takes "
            f"{scale.time:g} s. All of them are units: ratios of reading, computing and memory are the profile's."
        )
        made_up = "The profile is made up: its figures are its own, and so are its seconds."
        return (
            made_up if scale.share == 1 else units,
            "An agent lives a stretch of its published life: its context until then is on storage already, and read "
            "in its first turn.",
            "Oracle's transfers are not paced, but its bytes are moved all the same: it is at its bound only as far "
            "as the CPU lets it.",
        )

    def cell(self, system: System, p: int, d: int, **more: Any) -> Cell:
        made = Cell(
            system=system,
            prefill=p,
            decode=d,
            settings=self.settings(),
            trace=self.trace,
            load=ClosedLoop(self.agents),
            profile=self.profile,
            stored=True,
        )
        return replace(made, **more)

    def plan(
        self, kind: str, title: str, question: str, cells: Sequence[Cell], **more: Any
    ) -> Plan:
        return Plan(
            kind=kind,
            title=f"{title}, {self.profile.model.name}",
            question=question,
            cells=cells,
            profile=self.profile,
            workload=self.workload(),
            repetitions=self.options.repetitions,
            notes=(*self.notes(), *more.pop("notes", ())),
            **more,
        )

    def own_shape(self) -> str:
        return shape_name(*self.profile.shape)
