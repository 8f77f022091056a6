"""Where the time to a first token went, and where a prompt's KV came from. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dualpath.wire.types import AttemptStats

TTFT_PARTS = (
    "tokenize",
    "match",
    "scheduling",
    "allocation",
    "reading",
    "prefill",
    "other",
)
"""In the order in which they pass. `tokenize`: reading and checking the body, and its tokens' ids; `match`: asking
for the longest stored prefix; `scheduling`: waiting for a DE and for a PE; `allocation`: for room in their buffers;
`reading`: stored KV, and the ids of what misses; `prefill`: computing up to the first token; `other`: messages on
their way, and attempts that were lost."""

SOURCES = ("prefill", "decode", "hot", "computed")
"""Where a prompt token's KV came from: storage over the PE or the DE read path, a node's own memory (the hot tier),
or computation."""


def ttft_parts(
    own_s: Mapping[str, float], attempt_s: Mapping[str, float], ttft_s: float
) -> dict[str, float]:
    """Seconds by TTFT_PARTS; they sum up to `ttft_s`. `own_s` are the gateway's own timings, `attempt_s` those of the
    attempt that gave the first token (`AttemptStats.timings_s`)."""
    acquire_s = attempt_s.get("acquire", 0.0)
    parts = {
        "tokenize": own_s.get("accept", 0.0),
        "match": own_s.get("match", 0.0),
        "scheduling": attempt_s.get("wait_decode", 0.0) + attempt_s.get("wait_prefill", 0.0),
        "allocation": attempt_s.get("wait_slots", 0.0) + acquire_s,
        "reading": max(attempt_s.get("loading", 0.0) - acquire_s, 0.0),
        "prefill": attempt_s.get("first", 0.0),
    }
    parts["other"] = max(ttft_s - sum(parts.values()), 0.0)
    return parts


def token_sources(stats: AttemptStats | None, prompt_tokens: int) -> dict[str, int]:
    """A prompt's tokens by SOURCES, as its first attempt (`stats`) found them."""
    if stats is None:
        return dict.fromkeys(SOURCES, 0)
    prefill = min(stats.prefill_tokens, prompt_tokens)
    decode = min(stats.decode_tokens, prompt_tokens - prefill)
    # Blocks behind a hole were hot in vain.
    prefill_hot = min(stats.prefill_hot_tokens, prefill)
    decode_hot = min(stats.decode_hot_tokens, decode)
    return {
        "prefill": prefill - prefill_hot,
        "decode": decode - decode_hot,
        "hot": prefill_hot + decode_hot,
        "computed": prompt_tokens - prefill - decode,
    }
