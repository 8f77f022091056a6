"""When generation ends: pure."""

from __future__ import annotations

from dualpath.wire.types import FinishReason, Sampling


def finish_reason(
    sampling: Sampling, *, generated: int, token_id: int, room_tokens: int
) -> FinishReason | None:
    """After `token_id`, the request's token number `generated` (from 1), was sampled.

    `room_tokens`: how many more tokens the context could hold. Stop ids below `min_tokens` are never
    sampled, so they need no check here beyond the count.
    """
    if token_id in sampling.stop_ids and generated > sampling.min_tokens:
        return "stop"
    if generated >= sampling.max_tokens or room_tokens <= 0:
        return "length"
    return None
