"""The synthetic engine: no weights, real bytes, emulated time. Whole clusters of it fit on two cores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from xxhash import xxh3_64

from dualpath.memory.device import DeviceBuffer
from dualpath.memory.shared import SharedMemory
from dualpath.model.api import Backend, DecodeRow, LayerView, PrefillForward, PrefillRow
from dualpath.model.emulated_memory import EmulatedMemory
from dualpath.model.emulated_time import EmulatedTime
from dualpath.model.errors import ModelError
from dualpath.model.history import History
from dualpath.model.synthetic_experts import ExpertTraffic
from dualpath.model.synthetic_kv import (
    States,
    SyntheticShape,
    block_sum,
    digest_rows,
    fill_rows,
    id_term,
    next_token,
    token_state,
    token_states,
)
from dualpath.settings import Settings, SyntheticProfile
from dualpath.transport.collectives import Group
from dualpath.wire.types import Sampled, Sampling, TokenScores

INLINE_BYTES = 1 << 18
"""Below so many bytes, working is quicker than handing the work to a thread."""

_BYTES_PER_STATE = 64  # Making a token's state takes as long as digesting so many bytes, or longer.

T = TypeVar("T")


def prefill_s(profile: SyntheticProfile, rows: Sequence[PrefillRow]) -> float:
    """Emulated seconds of a forward: `forward_s` + `token_s` per new token + `attention_s` per pair of a new
    token and a token that it attends to."""
    new = [len(row.token_ids) for row in rows]
    pairs = sum(n * row.prefix_tokens + n * (n + 1) // 2 for n, row in zip(new, rows, strict=True))
    return profile.forward_s + profile.token_s * sum(new) + profile.attention_s * pairs


def decode_s(profile: SyntheticProfile, rows: Sequence[DecodeRow]) -> float:
    """Emulated seconds of a step: `decode_step_s` + `attention_s` per token attended to."""
    return profile.decode_step_s + profile.attention_s * sum(row.tokens + 1 for row in rows)


class SyntheticBackend(Backend):
    """KV bytes and answers as `dualpath.model.synthetic_kv` defines them; time as `settings.synthetic` says.

    A forward's time passes in equal shares per layer, each followed by the AllToAll of the layer where engines are
    in a group and the profile has one. Real work (writing and digesting KV) runs meanwhile, in a thread where it is
    long.
    """

    def __init__(self, spec: SyntheticShape, settings: Settings) -> None:
        self.geometry = spec.geometry
        self.vocab_size = spec.vocab_size
        self.profile = settings.synthetic
        self.grouped = settings.synthetic.all_to_all_bytes > 0
        self._experts: ExpertTraffic | None = None
        self._time = EmulatedTime()
        self._memory = EmulatedMemory(
            max(settings.prefill_hbm, settings.decode_hbm),
            shared=settings.use_shared_memory,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="synthetic")

    def join(self, group: Group) -> None:
        self._experts = ExpertTraffic(group, self.profile.all_to_all_bytes)

    @property
    def memory(self) -> SharedMemory | None:
        return self._memory.shared

    @property
    def used_bytes(self) -> int:
        """Of its memory, by buffers that were not freed."""
        return self._memory.used_bytes

    def allocate(self, nbytes: int) -> DeviceBuffer:
        return self._memory.allocate(nbytes)

    async def begin_prefill(self, rows: Sequence[PrefillRow]) -> PrefillForward:
        """Raises ValueError where `block_ids` of a row do not reach from a block's start to its prefix."""
        for row in rows:
            _check_block_ids(row.block_ids, row.prefix_tokens, self.geometry.block_tokens)
        layer_s = prefill_s(self.profile, rows) / self.geometry.n_layers
        key_bytes = sum(_BYTES_PER_STATE * len(row.token_ids) for row in rows)
        states = await self.run(lambda: [self._new_states(row) for row in rows], key_bytes)
        return SyntheticForward(self, rows, states, layer_s)

    def _new_states(self, row: PrefillRow) -> States:
        ids = [*row.block_ids, *row.token_ids]
        return token_states(row.parent_key, ids, self.geometry.block_tokens)[len(row.block_ids) :]

    async def decode(self, rows: Sequence[DecodeRow]) -> list[Sampled | None]:
        """Raises ValueError for a row without room, or whose `block_ids` do not fit its `tokens`."""
        for row in rows:
            _check_block_ids(row.block_ids, row.tokens, self.geometry.block_tokens)
            if row.tokens >= row.capacity:
                raise ValueError(f"a row of {row.tokens} tokens fills its capacity; grow it first")
        fresh_bytes = sum(
            row.tokens * self.geometry.token_bytes for row in rows if not _is_current(row)
        )
        step_s = decode_s(self.profile, rows)
        if self._experts is None:
            return await self.compute(step_s, lambda: self._decode(rows), fresh_bytes)
        layer_s = step_s / self.geometry.n_layers
        sampled = await self.compute(layer_s, lambda: self._decode(rows), fresh_bytes)
        await self.exchange(len(rows))
        for _ in range(1, self.geometry.n_layers):
            await self.compute(layer_s, _nothing, 0)
            await self.exchange(len(rows))
        return sampled

    def _decode(self, rows: Sequence[DecodeRow]) -> list[Sampled | None]:
        digested = [_digested(row, self.geometry.row_starts) for row in rows]
        states = np.array([d.append(row) for d, row in zip(digested, rows, strict=True)], np.uint64)
        for layer, row_bytes in enumerate(self.geometry.row_bytes):
            data = bytearray(len(rows) * row_bytes)
            fill_rows(states, layer, row_bytes, memoryview(data))
            for r, row in enumerate(rows):
                start = row.capacity * self.geometry.row_starts[layer] + row.tokens * row_bytes
                wire = row.kv.wire[start : start + row_bytes]
                wire[:] = data[r * row_bytes : (r + 1) * row_bytes]
                digested[r].layers[layer].update(wire)
        return [
            self.sample(
                [layer.intdigest() for layer in d.layers], row.index, row.sampling, row.history
            )
            for d, row in zip(digested, rows, strict=True)
        ]

    async def exchange(self, tokens: int) -> None:
        """The AllToAll that ends a layer; does nothing for an engine without a group."""
        if self._experts is not None:
            await self._experts.layer(tokens)

    def sample(
        self, digests: Sequence[int], index: int, sampling: Sampling, history: History | None
    ) -> Sampled | None:
        """None where nothing may come next."""
        try:
            allowed = None if history is None else history.allowed(self.vocab_size)
            return next_token(digests, index, sampling, self.vocab_size, allowed)
        except ModelError:
            return None

    async def compute(self, seconds: float, work: Callable[[], T], work_bytes: int) -> T:
        """Do `work`, and take `seconds` of emulated time for it (or longer, where it takes longer)."""
        loop = asyncio.get_running_loop()
        self._time.begin(loop.time(), seconds)
        result = await self.run(work, work_bytes)
        # At least one turn of the loop, so that a forward never holds up transfers and credits.
        await asyncio.sleep(self._time.pause(loop.time()))
        self._time.end(loop.time())
        return result

    async def run(self, work: Callable[[], T], work_bytes: int) -> T:
        """Do `work` here where it is short, else in the thread. Returns, raises or is cancelled only when the
        work has ended: it writes into buffers that the caller frees."""
        if work_bytes <= INLINE_BYTES:
            return work()
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        cancelled = False
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            running.exception()  # The caller is gone: nobody else would take it.
            raise asyncio.CancelledError
        return running.result()

    def close(self) -> None:
        self._thread.shutdown()
        if self.memory is not None:
            self.memory.close()


class SyntheticForward(PrefillForward):
    """Rows' layers are digested in the ring where they lie, right after their new rows were written there."""

    def __init__(
        self,
        backend: SyntheticBackend,
        rows: Sequence[PrefillRow],
        states: Sequence[States],
        layer_s: float,
    ) -> None:
        self._backend = backend
        self._rows = rows
        self._states = states
        self._layer_s = layer_s
        self._layer = 0
        self._digests: list[list[int]] = [[] for _ in rows]

    async def layer(self, index: int, kv: Sequence[LayerView]) -> None:
        """Raises RuntimeError for a layer out of turn."""
        if index != self._layer:
            raise RuntimeError(f"layer {index} was run where layer {self._layer} is next")
        tokens = sum(
            len(row.token_ids) + (row.prefix_tokens if row.sample else 0) for row in self._rows
        )
        await self._backend.compute(
            self._layer_s,
            lambda: self._run(index, kv),
            tokens * self._backend.geometry.row_bytes[index],
        )
        await self._backend.exchange(sum(len(row.token_ids) for row in self._rows))
        self._layer += 1

    def _run(self, index: int, kv: Sequence[LayerView]) -> None:
        row_bytes = self._backend.geometry.row_bytes[index]
        for row, states, view, digests in zip(
            self._rows, self._states, kv, self._digests, strict=True
        ):
            start = view.offset + row.prefix_tokens * row_bytes
            stop = start + len(row.token_ids) * row_bytes
            fill_rows(states, index, row_bytes, view.buffer.wire[start:stop])
            if row.sample is not None:
                digests.append(digest_rows(view.buffer.wire[view.offset : stop]))

    async def score(self) -> list[TokenScores | None]:
        """There are no logits."""
        nothing = np.full(max(len(row.token_ids) for row in self._rows), -np.inf, "<f4")
        return [
            TokenScores(0, nothing[: len(row.scored_ids)].tobytes()) if row.scored_ids else None
            for row in self._rows
        ]

    async def finish(self) -> list[Sampled | None]:
        """Raises RuntimeError before the last layer."""
        if self._layer != self._backend.geometry.n_layers:
            raise RuntimeError(f"the forward was finished before its layer {self._layer}")
        return [
            None
            if row.sample is None
            else self._backend.sample(digests, row.index, row.sample, row.history)
            for row, digests in zip(self._rows, self._digests, strict=True)
        ]


def _nothing() -> None:
    """What is computed in a layer whose time is all that counts."""


@dataclass
class _Digested:
    """What is kept of a resident request between steps: digests of its first `tokens` rows in each layer of
    `kv`, and the sum of its unfinished block's ids (see `block_sum`)."""

    kv: DeviceBuffer
    layers: list[xxh3_64]
    tokens: int
    parent_key: bytes
    ids_sum: int

    def append(self, row: DecodeRow) -> int:
        """Count `last_token` in; returns its state."""
        if row.parent_key != self.parent_key:
            self.parent_key, self.ids_sum = row.parent_key, block_sum(row.block_ids)
        self.ids_sum += id_term(len(row.block_ids), row.last_token)  # Taken modulo 2^64 at use.
        self.tokens += 1
        return token_state(self.parent_key, self.ids_sum)


def _is_current(row: DecodeRow) -> bool:
    """Whether the row's state speaks of its bytes. Not after they were copied elsewhere: what came there counts."""
    state = row.state
    return isinstance(state, _Digested) and state.kv is row.kv and state.tokens == row.tokens


def _digested(row: DecodeRow, row_starts: Sequence[int]) -> _Digested:
    """The state kept from the last step, or one made of the KV bytes as they are now."""
    if _is_current(row) and isinstance(row.state, _Digested):
        return row.state
    layers = []
    for start, next_start in pairwise(row_starts):
        base = row.capacity * start
        layers.append(xxh3_64(row.kv.wire[base : base + row.tokens * (next_start - start)]))
    row.state = _Digested(row.kv, layers, row.tokens, row.parent_key, block_sum(row.block_ids))
    return row.state


def _check_block_ids(block_ids: Sequence[int], tokens: int, block_tokens: int) -> None:
    if len(block_ids) != tokens % block_tokens:
        raise ValueError(
            f"{len(block_ids)} ids were given after the last full block of {tokens} tokens; "
            f"there are {tokens % block_tokens}"
        )
