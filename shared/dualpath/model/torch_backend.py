"""The torch engine: layerwise ragged prefill, and decoding of whole batches (paper §2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from dualpath.memory.device import DeviceBuffer
from dualpath.model.api import (
    Backend,
    DecodeRow,
    LayerView,
    ModelError,
    PrefillForward,
    PrefillRow,
)
from dualpath.model.attention import LayerRows, layer_rows
from dualpath.model.history import History
from dualpath.model.sampler import Scores, sample
from dualpath.model.spec import ModelSpec
from dualpath.model.torch_memory import TorchBuffer, TorchStaging, tensor_of
from dualpath.model.torch_model import TorchModel, choose_device, thread_count
from dualpath.model.torch_threads import ComputeThread
from dualpath.settings import Settings
from dualpath.wire.types import Sampled, Sampling, TokenScores


class TorchBackend(Backend):
    """A Hugging Face checkpoint on one device. All arithmetic happens in one thread of its own.

    Coroutines that are cancelled end only when the thread has left the caller's buffers.
    """

    def __init__(self, spec: ModelSpec, settings: Settings, engine: int = 0) -> None:
        self.geometry = spec.geometry
        self.device = choose_device(settings, engine)
        self._model = TorchModel(spec, self.device)
        self._thread = ComputeThread(thread_count(settings))
        self._staged = False

    def allocate(self, nbytes: int) -> TorchBuffer:
        return TorchBuffer(nbytes, self.device, staged=self._staged)

    def stage(self, nbytes: int) -> TorchStaging | None:
        """For CUDA alone."""
        if self.device.type != "cuda":
            return None
        self._staged = True
        return TorchStaging(nbytes, self.device)

    async def begin_prefill(self, rows: Sequence[PrefillRow]) -> PrefillForward:
        """Raises ValueError for a batch without rows, or a row without tokens."""
        if not rows or any(not row.token_ids for row in rows):
            raise ValueError("a prefill forward needs rows, and every row at least one token")
        return await self._thread.run(lambda: TorchPrefill(self._model, self._thread, rows))

    async def decode(self, rows: Sequence[DecodeRow]) -> list[Sampled | None]:
        """Raises ValueError where a row has no room for the token's KV."""
        full = [row for row in rows if row.tokens >= row.capacity]
        if full:
            raise ValueError(f"{len(full)} rows have no room for another token; grow their KV")
        if not rows:
            return []
        return await self._thread.run(lambda: _decode(self._model, rows))

    def close(self) -> None:
        self._thread.close()


class TorchPrefill(PrefillForward):
    """The state between the layers of one forward: hidden states of all packed tokens."""

    def __init__(
        self, model: TorchModel, thread: ComputeThread, rows: Sequence[PrefillRow]
    ) -> None:
        self._model, self._thread, self._rows = model, thread, rows
        self._ends = list(accumulate(len(row.token_ids) for row in rows))
        self._next = 0
        ids = [token for row in rows for token in row.token_ids]
        at = [row.prefix_tokens + i for row in rows for i in range(len(row.token_ids))]
        self._positions = torch.tensor([at], device=model.device)
        self._hidden = model.embed(torch.tensor(ids, device=model.device))
        self._rope = model.rope(self._hidden, self._positions)

    async def layer(self, index: int, kv: Sequence[LayerView]) -> None:
        """Raises ValueError out of order, or where `kv` has another length than the batch."""
        if index != self._next or len(kv) != len(self._rows):
            raise ValueError(
                f"layer {index} with KV of {len(kv)} rows: expected layer {self._next} with {len(self._rows)}"
            )
        await self._thread.run(lambda: self._layer(index, kv))
        self._next += 1

    async def score(self) -> list[TokenScores | None]:
        """Raises ValueError before the last layer."""
        self._check_ended()
        return await self._thread.run(lambda: [self._score(n) for n in range(len(self._rows))])

    async def finish(self) -> list[Sampled | None]:
        """None as well for a row whose logits are no numbers, as where its KV never arrived."""
        self._check_ended()
        return await self._thread.run(self._finish)

    def _check_ended(self) -> None:
        if self._next != len(self._model.parts):
            raise ValueError(f"layer {self._next} has not run yet: finish comes after the last")

    def _layer(self, index: int, kv: Sequence[LayerView]) -> None:
        model, row_size = self._model, _row_bytes(self._model, index)
        batch = [
            layer_rows(
                tensor_of(view.buffer),
                view.offset,
                row.prefix_tokens + len(row.token_ids),
                model.parts[index],
                model.dtype,
            )
            for row, view in zip(self._rows, kv, strict=True)
        ]
        cache = model.prefill_cache(batch, self._ends)
        self._hidden = model.layer(index, self._hidden, self._positions, self._rope, cache)
        for row, view in zip(self._rows, kv, strict=True):
            start = view.offset + row.prefix_tokens * row_size
            view.buffer.to_host(start, start + len(row.token_ids) * row_size)

    def _score(self, number: int) -> TokenScores | None:
        row = self._rows[number]
        if not row.scored_ids:
            return None
        start = self._ends[number] - len(row.token_ids)
        hidden = self._hidden[0, start : start + len(row.scored_ids)]
        wanted = torch.tensor(row.scored_ids, device=self._model.device)
        chosen, ids, best = self._model.score(hidden, wanted, row.scored_top)
        return TokenScores(
            ids.shape[1],
            chosen.numpy().astype("<f4").tobytes(),
            ids.numpy().astype("<i4").tobytes(),
            best.numpy().astype("<f4").tobytes(),
        )

    def _finish(self) -> list[Sampled | None]:
        ending = [number for number, row in enumerate(self._rows) if row.sample is not None]
        results: list[Sampled | None] = [None] * len(self._rows)
        if not ending:
            return results
        last = torch.tensor(
            [self._ends[number] - 1 for number in ending], device=self._model.device
        )
        logits = self._model.logits(self._hidden[0].index_select(0, last)).numpy()
        for number, scores in zip(ending, logits, strict=True):
            row = self._rows[number]
            assert row.sample is not None
            results[number] = _sample(row.sample, row.index, scores, row.history)
        return results


@dataclass(frozen=True)
class _Views:
    """Kept in `DecodeRow.state`: every layer's rows, over the whole capacity."""

    buffer: DeviceBuffer
    capacity: int
    layers: list[LayerRows]


def _decode(model: TorchModel, rows: Sequence[DecodeRow]) -> list[Sampled | None]:
    cache = model.decode_cache(
        [_views(model, row).layers for row in rows], [row.tokens for row in rows]
    )
    positions = torch.tensor([[row.tokens for row in rows]], device=model.device)
    hidden = model.embed(torch.tensor([row.last_token for row in rows], device=model.device))
    rope = model.rope(hidden, positions)
    for index in range(len(model.parts)):
        hidden = model.layer(index, hidden, positions, rope, cache)
    logits = model.logits(hidden[0]).numpy()
    return [
        _sample(row.sampling, row.index, scores, row.history)
        for row, scores in zip(rows, logits, strict=True)
    ]


def _sample(
    sampling: Sampling, index: int, scores: Scores, history: History | None
) -> Sampled | None:
    """None where no score is a number: the row's KV is damaged, which is no fault of the others."""
    try:
        return sample(sampling, index, scores, history)
    except ModelError:
        return None


def _views(model: TorchModel, row: DecodeRow) -> _Views:
    known = row.state
    if isinstance(known, _Views) and known.buffer is row.kv and known.capacity == row.capacity:
        return known
    layers, offset = [], 0
    for index, parts in enumerate(model.parts):
        layers.append(layer_rows(tensor_of(row.kv), offset, row.capacity, parts, model.dtype))
        offset += row.capacity * _row_bytes(model, index)
    row.state = _Views(row.kv, row.capacity, layers)
    return row.state


def _row_bytes(model: TorchModel, layer: int) -> int:
    """Bytes of one token's KV in `layer`."""
    return sum(part.elements for part in model.parts[layer]) * model.dtype.itemsize
