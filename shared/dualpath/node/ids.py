"""Token ids, which stay at the gateway: nodes ask for those that they need."""

from __future__ import annotations

import asyncio

from dualpath.blocks.keys import unpack_tokens
from dualpath.bus.nats_bus import Bus
from dualpath.model.grammar import Grammars
from dualpath.model.history import History, history_start, make_history
from dualpath.wire import control


class NoTokenIds(Exception):
    """The gateway did not give them; another attempt may succeed."""


Assignment = control.AssignPrefill | control.AssignDecode


async def fetch_ids(bus: Bus, assign: Assignment, start: int, stop: int) -> list[int]:
    """Ids [start, stop) of the attempt's sequence. Raises NoTokenIds, BusError."""
    ids: list[int] = []
    while start + len(ids) < stop:
        answer = await bus.request_until_answered(
            control.gateway_subject(assign.gateway_id),
            control.TokenRequest(assign.attempt, start + len(ids), stop),
            deadline_s=assign.deadline_s,
        )
        if not isinstance(answer, control.TokenPage) or not answer.token_ids:
            reason = getattr(answer, "reason", type(answer).__name__)
            raise NoTokenIds(f"{assign.gateway_id} gave no token ids: {reason}")
        ids.extend(unpack_tokens(answer.token_ids))
    return ids[: stop - start]


async def fetch_history(bus: Bus, assign: Assignment, grammars: Grammars) -> History | None:
    """What the sampler must know of the attempt's sequence. Raises as `fetch_ids`, and ModelError."""
    start = history_start(assign.sampling, assign.prompt_tokens, assign.generated)
    ids = await fetch_ids(bus, assign, start, assign.prompt_tokens)
    if assign.sampling.grammar:
        return await asyncio.to_thread(
            make_history, assign.sampling, ids, assign.generated, grammars
        )
    return make_history(assign.sampling, ids, assign.generated)
