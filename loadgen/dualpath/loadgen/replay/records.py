"""What a replay found out: a record per turn and agent, and their summary. Times are seconds since the replay
began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dualpath.loadgen.summary import Summary

STOPPED = "stopped"
"""The replay ended before this turn did: no error, and no figure either."""

LAG_LIMIT_S = 0.005
"""A client that is later than this (99th percentile) measures itself."""


@dataclass(slots=True)
class TurnRecord:
    """One request. `due_s`: when it should have been sent; `sent_s`: when its first byte was handed to the socket;
    `first_s`, `second_s`: arrival of the first and second token (None where there was none); `end_s`: of the last
    byte.

    `generated_tokens` as the server counted them. `error` is "" or a kind (`replay.errors`); `detail` a sentence."""

    agent: int
    turn: int
    prompt_tokens: int
    """The server's count where it gave one, else the trace's."""
    wanted_tokens: int
    due_s: float
    sent_s: float = 0.0
    first_s: float | None = None
    second_s: float | None = None
    last_s: float | None = None
    """Arrival of the last token."""
    end_s: float = 0.0
    generated_tokens: int = 0
    cached_tokens: int = 0
    attempts: int = 1
    error: str = ""
    detail: str = ""
    explain: dict[str, Any] | None = None
    """What a DualPath gateway said, where it was asked."""
    token_ids: tuple[int, ...] | None = None
    """The generated ids, with `keep_ids`."""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def ttft_s(self) -> float | None:
        """From when the request was due: a client that sends late must not look like a fast server."""
        return None if self.first_s is None else self.first_s - self.due_s

    @property
    def ttst_s(self) -> float | None:
        """From the first token to the second."""
        if self.first_s is None or self.second_s is None:
            return None
        return self.second_s - self.first_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of each token after the first; None of a single token."""
        if self.first_s is None or self.last_s is None or self.generated_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.generated_tokens - 1)

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.due_s


@dataclass(slots=True)
class AgentRecord:
    """One agent: its trajectory's name, when it was due and ended, how many of its turns were answered."""

    agent: int
    trajectory: str
    turns: int
    due_s: float
    end_s: float = 0.0
    answered: int = 0
    error: str = ""
    """Of the turn that ended it early; STOPPED where the replay did."""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def jct_s(self) -> float:
        return self.end_s - self.due_s


@dataclass(frozen=True)
class ClientLag:
    """The client's own part. `loop_s`: by how much the event loop was late, sampled; `send_s`: from a request's due
    time to its first byte's; `cpu`: share of one core; `valid`: neither lag's 99th percentile exceeds LAG_LIMIT_S."""

    loop_s: Summary
    send_s: Summary
    cpu: float

    @property
    def valid(self) -> bool:
        return max(self.loop_s.p(99), self.send_s.p(99)) <= LAG_LIMIT_S


@dataclass(frozen=True)
class Latencies:
    """Of answered turns. `e2e_s` is a request's, `agent_s` an agent's from arrival to its last token."""

    ttft_s: Summary
    ttst_s: Summary
    tpot_s: Summary
    e2e_s: Summary
    agent_s: Summary

    @classmethod
    def of(cls, turns: Iterable[TurnRecord], agents: Iterable[AgentRecord]) -> Latencies:
        good = [turn for turn in turns if turn.ok]
        return cls(
            Summary.of(turn.ttft_s for turn in good if turn.ttft_s is not None),
            Summary.of(turn.ttst_s for turn in good if turn.ttst_s is not None),
            Summary.of(turn.tpot_s for turn in good if turn.tpot_s is not None),
            Summary.of(turn.e2e_s for turn in good),
            Summary.of(agent.jct_s for agent in agents if agent.ok),
        )


@dataclass(frozen=True)
class ReplayResult:
    """A whole replay. `jct_s`: from the first agent's start to the last one's end (the paper's offline figure).
    `ended`: `done`, `overloaded`, `steady`, `max_s` or `interrupted`. `window_s`: the part of time that `steady`
    figures are of (of an open loop the last window, else all)."""

    turns: list[TurnRecord]
    agents: list[AgentRecord]
    lag: ClientLag
    ended: str
    began_unix_s: float
    duration_s: float
    prompts: str
    """How prompts were sent: ids, text or chat."""
    model: str
    retries: dict[str, int] = field(default_factory=dict)
    """By kind of refusal."""
    window_s: tuple[float, float] = (0.0, 0.0)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def jct_s(self) -> float:
        return max((agent.end_s for agent in self.agents), default=0.0) - min(
            (agent.due_s for agent in self.agents), default=0.0
        )

    @property
    def errors(self) -> dict[str, int]:
        """Failed turns by kind; a replay that stopped is no error."""
        return dict(Counter(t.error for t in self.turns if t.error and t.error != STOPPED))

    @property
    def valid(self) -> bool:
        """No errors, and the client was not what was measured."""
        return not self.errors and self.lag.valid

    @property
    def warnings(self) -> list[str]:
        """Sentences for whoever reads the figures."""
        said = []
        for kind, count in self.errors.items():
            detail = next(t.detail for t in self.turns if t.error == kind)
            said.append(f"{count} turns failed: {kind} ({detail})")
        for kind, count in self.retries.items():
            said.append(f"{count} requests were sent again: {kind}")
        if not self.lag.valid:
            said.append(
                f"the client was late (99th percentile: event loop {self.lag.loop_s.p(99) * 1e3:.1f} ms, "
                f"sending {self.lag.send_s.p(99) * 1e3:.1f} ms, above {LAG_LIMIT_S * 1e3:g} ms): "
                "give it a core of its own, or fewer agents"
            )
        return said

    def latencies(self, *, steady: bool = False) -> Latencies:
        """Of everything, or of what ended within `window_s`."""
        if not steady:
            return Latencies.of(self.turns, self.agents)
        low, high = self.window_s
        return Latencies.of(
            [turn for turn in self.turns if low <= turn.end_s <= high],
            [agent for agent in self.agents if low <= agent.end_s <= high],
        )

    def rates(self) -> dict[str, float]:
        """Per second of the whole replay: turns, agents, and tokens of prompts and answers."""
        good = [turn for turn in self.turns if turn.ok]
        seconds = self.duration_s or 1.0
        return {
            "turns": len(good) / seconds,
            "agents": sum(agent.ok for agent in self.agents) / seconds,
            "prompt_tokens": sum(turn.prompt_tokens for turn in good) / seconds,
            "cached_tokens": sum(turn.cached_tokens for turn in good) / seconds,
            "generated_tokens": sum(turn.generated_tokens for turn in good) / seconds,
        }

    def as_dict(self, *, records: bool = True) -> dict[str, Any]:
        """Everything, for JSON; `records` False leaves out what is of single turns and agents."""
        good = [turn for turn in self.turns if turn.ok]
        prompt_tokens = sum(turn.prompt_tokens for turn in good)
        cached_tokens = sum(turn.cached_tokens for turn in good)
        found: dict[str, Any] = {
            "settings": self.settings,
            "model": self.model,
            "prompts": self.prompts,
            "began_unix_s": self.began_unix_s,
            "duration_s": self.duration_s,
            "ended": self.ended,
            "valid": self.valid,
            "warnings": self.warnings,
            "jct_s": self.jct_s,
            "agents": {"all": len(self.agents), "ok": sum(agent.ok for agent in self.agents)},
            "turns": {"all": len(self.turns), "ok": len(good)},
            "errors": self.errors,
            "retries": self.retries,
            "tokens": {
                "prompt": prompt_tokens,
                "cached": cached_tokens,
                "generated": sum(turn.generated_tokens for turn in good),
            },
            "hit_rate": cached_tokens / prompt_tokens if prompt_tokens else 0.0,
            "rates_per_s": self.rates(),
            "latencies": asdict(self.latencies()),
            "window_s": list(self.window_s),
            "window_latencies": asdict(self.latencies(steady=True)),
            "lag": {**asdict(self.lag), "limit_s": LAG_LIMIT_S, "valid": self.lag.valid},
        }
        if records:
            found["turn_records"] = _columns(self.turns)
            found["agent_records"] = _columns(self.agents)
        return found


def _columns(records: Sequence[TurnRecord] | Sequence[AgentRecord]) -> dict[str, list[Any]]:
    """A list per field, microseconds kept; fields that nobody filled are left out."""
    if not records:
        return {}
    columns = {
        name: [_rounded(getattr(record, name)) for record in records]
        for name in type(records[0]).__slots__
    }
    return {name: column for name, column in columns.items() if any(v is not None for v in column)}


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
