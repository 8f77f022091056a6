"""What a replay is asked to do: where to, how many agents and when, what counts as good enough, when to stop.
Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Prompts = Literal["auto", "ids", "text", "chat"]


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server.

    `prompts`: how turns become requests. `ids`: `/v1/completions` with token ids, and the generated ids asked for
    with `return_token_ids`, so that prompts are exact. `text`: `/v1/completions` with text. `chat`:
    `/v1/chat/completions`. `auto`: chat for recorded conversations, else ids where the server takes and returns
    them, else chat; for text and chat, lengths are reached on average, by words whose length in tokens was asked of
    the server.

    Answers have exactly the trace's length: `max_tokens`, and `ignore_eos` and `min_tokens` (extensions that
    DualPath, vLLM and SGLang have; `exact` False leaves them out, and answers may then be shorter).
    """

    url: str
    """Ends in `/v1`."""
    model: str | None = None
    """None: the first that `/v1/models` lists."""
    api_key: str | None = None
    prompts: Prompts = "auto"
    vocab: tuple[int, int] = (300, 30_000)
    """Token ids are from the first up to, and without, the second."""
    exact: bool = True
    explain: bool = False
    """Ask a DualPath gateway how each request was served (`X-DualPath-Explain`)."""
    extra: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})
    """Further fields of each request's body."""
    seeded: bool = False
    """Give each agent's requests a `seed` of their own: for samples of the same prompt."""
    ca_file: str | None = None
    """Certificates to trust instead of the system's."""
    max_connections: int = 8192
    timeout_s: float = 600.0
    """From a request to the last byte of its answer."""
    retries: int = 0
    """How often a request that was refused for now (429, 503, no connection) is sent again, after what `Retry-After`
    says or 1 s. Each is counted; TTFT runs from the first sending."""


@dataclass(frozen=True)
class ClosedLoop:
    """`agents` start at once, and each turn follows the last: the paper's offline runs, whose figure is the JCT."""

    agents: int

    def __post_init__(self) -> None:
        if self.agents < 1:
            raise ValueError("at least one agent is needed")


@dataclass(frozen=True)
class OpenLoop:
    """Agents arrive whatever the server does, and replay their trajectory from the first turn to the last: the
    paper's online runs. `aps`: agents per second, Poisson, seeded; None: at the trace's own times. Ends after
    `agents`, with `StopRules`, or never."""

    aps: float | None = None
    agents: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.aps is not None and not (math.isfinite(self.aps) and self.aps > 0):
            raise ValueError(f"agents per second are more than 0, not {self.aps}")
        if self.agents is not None and self.agents < 1:
            raise ValueError("at least one agent is needed")


@dataclass(frozen=True)
class Slo:
    """What latency is good enough; the paper's is TTFT ≤ 4 s and TPOT ≤ 50 ms. `percent` None: of means, else of that
    percentile (one of `summary.PERCENTILES`)."""

    ttft_s: float = 4.0
    tpot_s: float = 0.05
    percent: float | None = None

    def divided(self, scale: float) -> Slo:
        """Both times divided by `scale`, as `StopRules.divided` does."""
        return Slo(self.ttft_s / scale, self.tpot_s / scale, self.percent)


@dataclass(frozen=True)
class StopRules:
    """When an open loop ends before its agents do (paper, §6): as soon as the mean TTFT of the last `window_s`
    exceeds `ttft_s` (overloaded), or when it differs by less than `tolerance` from the window `lookback_s` earlier
    (steady). Hardware that is emulated more slowly or faster than the paper's has other times: `divided`. `max_s`:
    the end in any case."""

    ttft_s: float | None = 4.0
    window_s: float = 150.0
    lookback_s: float = 1800.0
    tolerance: float = 0.05
    max_s: float | None = None
    min_turns: int = 20
    """A window with fewer answers says nothing."""

    def divided(self, scale: float) -> StopRules:
        """All of the paper's times divided by `scale`; `max_s` stays, it is the user's."""
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"a scale of time is more than 0, not {scale}")
        return StopRules(
            None if self.ttft_s is None else self.ttft_s / scale,
            self.window_s / scale,
            self.lookback_s / scale,
            self.tolerance,
            self.max_s,
            self.min_turns,
        )


Load = ClosedLoop | OpenLoop
