"""What answers say: whether they are right, where their time went, where their KV-Cache came from."""

from __future__ import annotations

from collections.abc import Sequence

from xxhash import xxh3_128_hexdigest

from dualpath.loadgen.replay import ReplayResult, Target, TurnRecord
from dualpath.loadgen.traces.content import prompt_ids
from dualpath.loadgen.traces.model import Trace
from dualpath.model.spec import load_spec
from dualpath.model.synthetic_kv import reference_tokens
from dualpath.settings import Settings
from dualpath.wire.types import Sampling

CHECKED = 4
"""Answers of a run that are computed anew: the last ones of so many agents, on which all before them rests."""


def recompute(settings: Settings, trace: Trace, result: ReplayResult) -> tuple[int, int]:
    """(checked, wrong) of the last answers of some agents, by what the synthetic engine's arithmetic says."""
    spec = load_spec(settings)
    by_agent: dict[int, list[TurnRecord]] = {}
    for turn in result.turns:
        if turn.ok and turn.token_ids is not None:
            by_agent.setdefault(turn.agent, []).append(turn)
    checked = wrong = 0
    vocab = Target(url="").vocab
    for agent in sorted(by_agent)[:CHECKED]:
        turns = sorted(by_agent[agent], key=lambda turn: turn.turn)
        if [turn.turn for turn in turns] != list(range(len(turns))):
            continue
        answers = [list(turn.token_ids or ()) for turn in turns]
        last = len(turns) - 1
        prompt = prompt_ids(trace, trace.agent(agent), last, answers[:last], vocab)
        sampling = Sampling(max_tokens=len(answers[last]), seed=0)
        checked += 1
        wrong += reference_tokens(spec, prompt, len(answers[last]), sampling) != answers[last]
    return checked, wrong


_NAMES = {
    "scheduling": ("queued", "wait_decode", "wait_prefill"),
    "allocation": ("allocation", "wait_slots"),
    "reading": ("loading",),
    "prefill": ("prefill",),
}
"""Where an explanation has no `ttft_s`: which phases are a part of TTFT."""


def ttft_parts(turns: Sequence[TurnRecord]) -> dict[str, float]:
    """Mean seconds of TTFT by part; `other` is what no part has."""
    sums: dict[str, float] = {}
    counted = 0
    for turn in turns:
        explain = turn.explain or {}
        parts = explain.get("ttft_s")
        if not isinstance(parts, dict):
            timings = explain.get("timings_s", {})
            parts = {
                part: sum(float(timings.get(name, 0.0)) for name in names)
                for part, names in _NAMES.items()
            }
        if turn.ttft_s is None or not parts:
            continue
        counted += 1
        rest = turn.ttft_s
        for part, seconds in parts.items():
            if part in _NAMES:
                sums[part] = sums.get(part, 0.0) + float(seconds)
                rest -= float(seconds)
        sums["other"] = sums.get("other", 0.0) + max(rest, 0.0)
    return {part: total / counted for part, total in sums.items()} if counted else {}


def hits_by_source(turns: Sequence[TurnRecord]) -> dict[str, int]:
    """Prompt tokens by where their KV came from: read on a side, a node's own memory, or computed."""
    found = {"prefill": 0, "decode": 0, "hot": 0, "computed": 0}
    for turn in turns:
        explain = turn.explain or {}
        tokens = explain.get("tokens")
        if isinstance(tokens, dict):
            found["prefill"] += int(tokens.get("prefill_path", 0))
            found["decode"] += int(tokens.get("decode_path", 0))
            found["hot"] += int(tokens.get("hot", 0))
        else:
            read = explain.get("bytes_read", {})
            prefill, decode = float(read.get("prefill", 0)), float(read.get("decode", 0))
            if prefill + decode:
                on_prefill = round(turn.cached_tokens * prefill / (prefill + decode))
                found["prefill"] += on_prefill
                found["decode"] += turn.cached_tokens - on_prefill
        found["computed"] += turn.prompt_tokens - turn.cached_tokens
    return found


def digests(turns: Sequence[TurnRecord]) -> dict[str, str]:
    """Of the generated ids, by `agent.turn`."""
    return {
        f"{turn.agent}.{turn.turn}": xxh3_128_hexdigest(repr(turn.token_ids).encode())
        for turn in turns
        if turn.token_ids
    }
