"""Plays the node for a back end: keeps each request's KV, runs its chunks layer by layer, hands it over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dualpath.model.api import Backend, DecodeRow, LayerView, PrefillRow
from dualpath.wire.types import Sampled, Sampling

GREEDY = Sampling(max_tokens=1 << 20, seed=0)


@dataclass
class Request:
    """`kv[layer]` holds the rows that are known so far, as a DE's slots would."""

    prompt: list[int]
    sampling: Sampling = GREEDY
    kv: list[bytearray] = field(default_factory=list)
    done: int = 0
    first: Sampled | None = None

    def take_prefix(self, other: Request, tokens: int, row_bytes: Sequence[int]) -> None:
        """Start with the first `tokens` rows of another request's KV, as after a hit."""
        self.kv = [rows[: tokens * size] for rows, size in zip(other.kv, row_bytes, strict=True)]
        self.done = tokens


async def prefill_step(backend: Backend, chunks: Sequence[tuple[Request, int]]) -> None:
    """One ragged forward of the next n tokens of each request; fresh device memory for every layer."""
    rows = []
    for request, count in chunks:
        stop = request.done + count
        last = stop == len(request.prompt)
        request.kv = request.kv or [bytearray() for _ in backend.geometry.row_bytes]
        rows.append(
            PrefillRow(
                token_ids=request.prompt[request.done : stop],
                prefix_tokens=request.done,
                sample=request.sampling if last else None,
            )
        )
    forward = await backend.begin_prefill(rows)
    for layer, size in enumerate(backend.geometry.row_bytes):
        views = []
        for request, count in chunks:
            # Odd places in a larger buffer: a row's offset is arbitrary but for the element size.
            buffer = backend.allocate((request.done + count + 2) * size)
            cached = len(request.kv[layer])
            buffer.wire[:] = b"\xa5" * buffer.nbytes
            buffer.wire[size : size + cached] = request.kv[layer]
            buffer.to_device(size, size + cached)
            views.append(LayerView(buffer, size))
        await forward.layer(layer, views)
        for (request, count), view in zip(chunks, views, strict=True):
            start = view.offset + request.done * size
            stop = start + count * size
            request.kv[layer] += view.buffer.wire[start:stop]
            assert bytes(view.buffer.wire[:size]) == b"\xa5" * size
            assert bytes(view.buffer.wire[stop:]) == b"\xa5" * size
            view.buffer.free()
    results = await forward.finish()
    for (request, count), result in zip(chunks, results, strict=True):
        request.done += count
        if request.done == len(request.prompt):
            assert result is not None
            request.first = result
        else:
            assert result is None


async def prefill(backend: Backend, request: Request, chunk: int | None = None) -> None:
    """The rest of a prompt, in chunks of `chunk` tokens."""
    while request.done < len(request.prompt):
        left = len(request.prompt) - request.done
        await prefill_step(backend, [(request, min(chunk or left, left))])


def hand_over(backend: Backend, request: Request, room: int) -> DecodeRow:
    """HANDOFF: all KV into one device buffer with room for `room` more tokens."""
    assert request.first is not None
    geometry, tokens = backend.geometry, len(request.prompt)
    capacity = tokens + room
    buffer = backend.allocate(geometry.flat_bytes(capacity))
    for layer, rows in enumerate(request.kv):
        start = geometry.flat_offset(capacity, layer, 0)
        buffer.wire[start : start + len(rows)] = rows
        buffer.to_device(start, start + len(rows))
    return DecodeRow(
        kv=buffer,
        capacity=capacity,
        tokens=tokens,
        last_token=request.first.token_id,
        sampling=request.sampling,
        index=1,
    )


async def decode_step(backend: Backend, rows: Sequence[DecodeRow]) -> list[Sampled]:
    """One step of rows whose KV is right, with the bookkeeping that is the caller's."""
    results = []
    for row, result in zip(rows, await backend.decode(rows), strict=True):
        assert result is not None
        results.append(result)
        row.tokens += 1
        row.last_token = result.token_id
        row.index += 1
    return results


async def generate(backend: Backend, requests: Sequence[Request], n: int) -> list[list[int]]:
    """`n` tokens of each prefilled request, decoded together."""
    rows = [hand_over(backend, request, n) for request in requests]
    answers = [[row.last_token] for row in rows]
    for _ in range(n - 1):
        for answer, result in zip(answers, await decode_step(backend, rows), strict=True):
            answer.append(result.token_id)
    for row in rows:
        row.kv.free()
    return answers
