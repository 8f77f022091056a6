"""One forward of a prefill engine: rows' layers arrive, are computed and leave, overlapped (paper §2)."""

from __future__ import annotations

from collections.abc import Sequence

from dualpath.prefill.row import EngineParts, ForwardRow
from dualpath.prefill.trace import ForwardTrace
from dualpath.transport.collectives import CollectiveError
from dualpath.wire.types import Sampled


async def run_forward(
    rows: Sequence[ForwardRow], parts: EngineParts, trace: ForwardTrace
) -> list[Sampled | None]:
    """Compute all layers of all rows; the sampled token of each row that ends its prompt and is alive.

    When this returns, compute has ended; transfers of `rows` may go on: `ForwardRow.drain` waits for them.
    Stops early once every row is dead, unless other engines take part: theirs go on. A collective that fails
    fails all rows.
    """
    try:
        return await _run_layers(rows, parts, trace)
    except CollectiveError as error:
        for row in rows:
            row.fail(error)
        return [None] * len(rows)


async def _run_layers(
    rows: Sequence[ForwardRow], parts: EngineParts, trace: ForwardTrace
) -> list[Sampled | None]:
    n_layers = parts.backend.geometry.n_layers
    for row in rows:
        row.start()
    forward = await parts.backend.begin_prefill([row.batch_row() for row in rows])
    if not parts.layerwise:
        await _arrive(rows, range(n_layers))
    for layer in range(n_layers):
        await _arrive(rows, (layer,))
        if not parts.steps.together and all(row.dead for row in rows):
            return [None] * len(rows)
        trace.mark("compute", layer)
        await forward.layer(layer, [row.ring.view(layer) for row in rows])
        trace.mark("computed", layer)
        if parts.layerwise:
            for row in rows:
                row.leave(layer)
    if any(row.request.assign.sampling.prompt_logprobs for row in rows):
        for row, scores in zip(rows, await forward.score(), strict=True):
            row.scores = scores
    sampled = await forward.finish()
    if not parts.layerwise:
        for row in rows:
            for layer in range(n_layers):
                row.leave(layer)
    return [None if row.dead else token for row, token in zip(rows, sampled, strict=True)]


async def _arrive(rows: Sequence[ForwardRow], layers: Sequence[int] | range) -> None:
    for layer in layers:
        for row in rows:
            await row.arrived(layer)
