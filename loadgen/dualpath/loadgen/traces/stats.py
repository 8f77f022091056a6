"""What a trace is like, in figures. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from dualpath.loadgen.summary import Summary
from dualpath.loadgen.traces.model import Trace


@dataclass(frozen=True)
class TraceStats:
    """Of each trajectory (`turns`, `append`, `generate`, `total` and `context` are, within it, a number, means, the
    context's length at its end, and a mean prompt), and of all requests together. Lengths in tokens.

    `ideal_hit_rate`: the share of all prompts' tokens that a cache without a limit has, each request's KV being there
    when the next one comes; `ideal_block_hit_rate` the same of whole hash-id blocks, None where there are none."""

    trajectories: int
    requests: int
    turns: Summary
    append: Summary
    generate: Summary
    total: Summary
    context: Summary
    request_append: Summary
    request_generate: Summary
    request_context: Summary
    span_s: float | None
    ideal_hit_rate: float
    ideal_block_hit_rate: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(trace: Trace) -> TraceStats:
    trajectories = trace.trajectories
    contexts = [list(trajectory.contexts()) for trajectory in trajectories]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    rates = _hit_rates(trace, contexts)
    return TraceStats(
        trajectories=len(trajectories),
        requests=len(turns),
        turns=Summary.of(len(t.turns) for t in trajectories),
        append=Summary.of(t.append_tokens / len(t.turns) for t in trajectories),
        generate=Summary.of(t.generate_tokens / len(t.turns) for t in trajectories),
        total=Summary.of(t.total_tokens for t in trajectories),
        context=Summary.of(fmean(lengths) for lengths in contexts),
        request_append=Summary.of(turn.append_tokens for turn in turns),
        request_generate=Summary.of(turn.generate_tokens for turn in turns),
        request_context=Summary.of(length for lengths in contexts for length in lengths),
        span_s=trace.span_s if trace.timed else None,
        ideal_hit_rate=rates[0],
        ideal_block_hit_rate=rates[1],
    )


def _hit_rates(trace: Trace, contexts: list[list[int]]) -> tuple[float, float | None]:
    """By tokens, and by blocks. A turn hits the context that the one before it left; a first turn the leading
    blocks that were there before."""
    seen: set[int] = set()
    tokens = hit_tokens = blocks = hit_blocks = 0
    for trajectory, lengths in zip(trace.trajectories, contexts, strict=True):
        for number, (turn, length) in enumerate(zip(trajectory.turns, lengths, strict=True)):
            tokens += length
            if number:
                hit_tokens += length - turn.append_tokens
                continue
            leading = 0
            for block in turn.blocks:
                if block not in seen:
                    break
                leading += 1
            seen.update(turn.blocks)
            blocks += len(turn.blocks)
            hit_blocks += leading
            hit_tokens += min(leading * trace.block_tokens, length)
    return hit_tokens / tokens, hit_blocks / blocks if blocks else None
