"""Measures an engine through its back end: forwards by (cached, new), decode steps by batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from dualpath.calibration.fit import Sample, fit_forward, predict
from dualpath.model.api import Backend, DecodeRow, LayerView, PrefillRow
from dualpath.wire.types import Sampling

QUICK_S = 0.6
"""The quick form begins no point that would end later than this after the first, which warms up."""

QUICK_SAMPLE_S = 0.01
FULL_SAMPLE_S = 0.08
"""A sample is the mean of as many forwards as last so long: emulated ones end up to a millisecond early or late,
and make good for it in the next."""

_STEPS = 12
_PARENT = bytes(16)


def forward_points(chunk_tokens: int, max_context: int) -> list[tuple[int, int]]:
    """(cached, new), the cheapest first: chunks up to `chunk_tokens`, after nothing and parts of the context."""
    longest = max_context - 1
    chunk = max(min(chunk_tokens, longest), 1)
    news = sorted({max(chunk // part, 1) for part in (16, 4, 2, 1)})
    points = {
        (cached, new)
        for new in news
        for cached in (0, longest // 8, longest // 4, longest // 2, longest - new)
        if cached + new <= longest
    }
    return sorted(points, key=_cost)


def _cost(point: tuple[int, int]) -> float:
    """In pairs; a token costs as much as some thousand of them."""
    cached, new = point
    return Sample(cached, new, 0.0).pairs + 1000.0 * new


def quick_points(chunk_tokens: int, max_context: int) -> list[tuple[int, int]]:
    """Few and cheap ones that tell tokens from pairs."""
    longest = max_context - 1
    chunk = max(min(chunk_tokens, longest), 1)
    few, some, more = max(chunk // 64, 1), max(chunk // 16, 1), max(chunk // 4, 1)
    points = [
        (0, few),
        (longest // 4, few),
        (0, some),
        (longest // 2, some),
        (0, more),
        (longest // 2, more),
        (0, chunk),
    ]
    return [(cached, new) for cached, new in dict.fromkeys(points) if cached + new <= longest]


async def measure_forwards(
    backend: Backend,
    points: Sequence[tuple[int, int]],
    *,
    sample_s: float,
    budget_s: float,
    on_sample: Callable[[Sample], None] = lambda _: None,
) -> list[Sample]:
    """Seconds of each forward: the lesser of two samples, each the mean over forwards that take `sample_s` together.

    Leaves out points that, as those before them tell, would end after `budget_s`; at least one is measured.
    Nothing else may use the back end meanwhile.
    """
    samples: list[Sample] = []
    await _forward(backend, 0, 1)
    await _forward(backend, *points[0])
    began = time.perf_counter()
    for cached, new in points:
        spent = time.perf_counter() - began
        if samples and spent + 2 * max(sample_s, _expected(samples, cached, new)) > budget_s:
            continue
        seconds = min([await _mean(backend, cached, new, sample_s) for _ in range(2)])
        samples.append(Sample(cached, new, seconds))
        on_sample(samples[-1])
    return samples


async def _mean(backend: Backend, cached: int, new: int, sample_s: float) -> float:
    spent = [await _forward(backend, cached, new)]
    while sum(spent) < sample_s:
        spent.append(await _forward(backend, cached, new))
    return sum(spent) / len(spent)


def _expected(samples: Sequence[Sample], cached: int, new: int) -> float:
    """Seconds of a forward, with a margin."""
    return 1.5 * predict(fit_forward(samples), Sample(cached, new, 0.0))


async def _forward(backend: Backend, cached: int, new: int) -> float:
    """One row, without sampling. Its KV is zeros: only time is asked for."""
    geometry = backend.geometry
    block = geometry.block_tokens
    aligned = cached - cached % block
    row = PrefillRow(
        token_ids=[1] * new,
        prefix_tokens=cached,
        sample=None,
        parent_key=_PARENT,
        block_ids=[1] * (cached - aligned),
    )
    buffer = backend.allocate((cached + new) * geometry.max_row_bytes)
    try:
        buffer.wire[:] = bytes(buffer.nbytes)
        buffer.to_device(0, buffer.nbytes)
        began = time.perf_counter()
        forward = await backend.begin_prefill([row])
        for layer in range(geometry.n_layers):
            await forward.layer(layer, [LayerView(buffer, 0)])
        await forward.finish()
        return time.perf_counter() - began
    finally:
        buffer.free()


def decode_batches(largest: int) -> Iterator[int]:
    """1, 2, 4, … up to `largest`."""
    batch = 1
    while batch <= largest:
        yield batch
        batch *= 2


async def measure_decode(
    backend: Backend, batches: Sequence[int], *, context: int
) -> list[tuple[int, float]]:
    """(batch, seconds of a step), the mean of a few, of requests with `context` tokens each."""
    return [(batch, await _decode(backend, batch, context)) for batch in batches]


async def _decode(backend: Backend, batch: int, context: int) -> float:
    geometry = backend.geometry
    tokens = max(context - context % geometry.block_tokens, 0)
    steps = min(_STEPS, geometry.block_tokens)
    capacity = tokens + steps + 1
    rows: list[DecodeRow] = []
    spent: list[float] = []
    try:
        for _ in range(batch):
            buffer = backend.allocate(geometry.flat_bytes(capacity))
            buffer.wire[:] = bytes(buffer.nbytes)
            buffer.to_device(0, buffer.nbytes)
            sampling = Sampling(max_tokens=capacity, seed=0)
            rows.append(
                DecodeRow(buffer, capacity, tokens, 1, sampling, index=1, parent_key=_PARENT)
            )
        for _ in range(steps):
            began = time.perf_counter()
            sampled = await backend.decode(rows)
            spent.append(time.perf_counter() - began)
            for row, token in zip(rows, sampled, strict=True):
                row.block_ids.append(row.last_token)
                row.tokens += 1
                row.index += 1
                row.last_token = token.token_id if token is not None else 1
    finally:
        for row in rows:
            row.kv.free()
    # The first step makes the rows' state, which later ones have.
    rest = spent[1:] or spent
    return sum(rest) / len(rest)
