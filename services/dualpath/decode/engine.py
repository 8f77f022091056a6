"""A decode engine: continuous batching of everything resident (paper §5: a DE always batches all)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from dualpath.decode.persist import WriteBack
from dualpath.decode.request import DecodeRequest
from dualpath.memory.device import DeviceBuffer
from dualpath.memory.hbm import HbmLedger
from dualpath.model.api import Backend, DecodeRow, ModelError
from dualpath.node.copies import Copier
from dualpath.node.device_copies import DeviceCopies
from dualpath.node.engine_group import Steps
from dualpath.node.finish import finish_reason
from dualpath.tasks import finish
from dualpath.transport.api import TransportError
from dualpath.transport.collectives import CollectiveError
from dualpath.wire.types import Attempt, Sampled

GROW_SHARE = 4
"""A row that is full grows by 1/4 of its capacity where HBM allows, so that copying stays linear."""


class Preempted(Exception):
    """Out of HBM, and this request was the youngest: it has to come back as a new attempt."""


class DamagedKV(Exception):
    """The request's KV-Cache on the device gives no logits that are numbers; another attempt may succeed."""


class DecodeEngine:
    """Owns HBM and the resident rows of one device. `run` is its loop.

    A request's task calls `admit` (waits for HBM, copies the prompt's KV in), then awaits `request.finished`,
    then `evict`. Between steps the engine alone changes rows.
    """

    def __init__(
        self,
        backend: Backend,
        copies: DeviceCopies,
        copier: Copier,
        write_back: WriteBack,
        steps: Steps,
        *,
        capacity_tokens: int,
        max_context: int,
        on_step: Callable[[], Coroutine[Any, Any, None]],
        on_forward: Callable[[int, float], None],
    ) -> None:
        """`on_step` is awaited after each step; `on_forward` is told of its tokens and the seconds it computed."""
        self.backend = backend
        self._copies = copies
        self.ledger: HbmLedger[Attempt] = HbmLedger(capacity_tokens)
        self._geometry = backend.geometry
        self._copier = copier
        self._write_back = write_back
        self._steps = steps
        self._max_context = max_context
        self._on_step = on_step
        self._on_forward = on_forward
        self._handoffs: deque[tuple[DecodeRequest, asyncio.Future[None]]] = deque()
        self._resident: dict[Attempt, DecodeRequest] = {}
        self._stepping: frozenset[Attempt] = frozenset()
        self._stepped = asyncio.Condition()
        self._wake = asyncio.Event()
        self.steps = 0
        self.tokens = 0

    # ── HANDOFF ────────────────────────────────────────────────────────────────────────────────────
    async def admit(self, request: DecodeRequest, last: Sampled) -> None:
        """Wait for HBM, first come first served, and copy the prompt's KV into it through the CNIC.

        Afterwards the request decodes, and its slots are not read by the engine any more. When cancelled,
        nothing is held.
        """
        await self._take_hbm(request)
        try:
            capacity = self._geometry.blocks_for(request.prompt_tokens + 1)
            row = self._new_row(request, capacity * self._geometry.block_tokens, last)
            await self._copies.charge(request.prompt_tokens * self._geometry.token_bytes)
            await self._copy_prompt(request, row)
        except BaseException:
            self._free_row(request)
            raise
        self._resident[request.attempt] = request
        self._wake.set()

    async def _take_hbm(self, request: DecodeRequest) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (request, granted)
        self._handoffs.append(entry)
        self._grant_hbm()
        try:
            await granted
        except asyncio.CancelledError:
            if entry in self._handoffs:
                self._handoffs.remove(entry)
            # It may have been granted: a row that waits for this HBM sits out until somebody wakes the engine.
            self._free_row(request)
            raise

    def _grant_hbm(self) -> None:
        """Serve the head of the line while it fits."""
        while self._handoffs:
            request, granted = self._handoffs[0]
            blocks = self._geometry.blocks_for(request.prompt_tokens + 1)
            if not granted.cancelled() and not self.ledger.allocate(
                request.attempt, blocks * self._geometry.block_tokens
            ):
                return
            self._handoffs.popleft()
            if not granted.cancelled():
                granted.set_result(None)

    def _new_row(self, request: DecodeRequest, capacity: int, last: Sampled) -> DecodeRow:
        sequence = request.sequence
        assert sequence is not None
        row = DecodeRow(
            kv=self.backend.allocate(self._geometry.flat_bytes(capacity)),
            capacity=capacity,
            tokens=request.prompt_tokens,
            last_token=last.token_id,
            sampling=request.assign.sampling,
            index=request.assign.generated + 1,
            parent_key=sequence.parent,
            block_ids=list(sequence.tail),
            history=request.history,
        )
        request.row = row
        return row

    async def _copy_prompt(self, request: DecodeRequest, row: DecodeRow) -> None:
        region, geometry = request.region, self._geometry
        assert region is not None
        copies = []
        for layer in range(geometry.n_layers):
            at = geometry.flat_offset(row.capacity, layer, 0)
            for piece in region.rows(layer, 0, row.tokens):
                copies.append((row.kv.wire[at : at + len(piece)], piece))
                at += len(piece)
        await self._copier.run(copies)
        await self._to_device(row.kv, row.capacity, row.tokens)

    async def _to_device(self, kv: DeviceBuffer, capacity: int, tokens: int) -> None:
        for layer in range(self._geometry.n_layers):
            at = self._geometry.flat_offset(capacity, layer, 0)
            await self._copies.to_device(kv, at, at + tokens * self._geometry.row_bytes[layer])

    # ── the loop ───────────────────────────────────────────────────────────────────────────────────
    async def run(self) -> None:
        """Step while anything is resident here, or at another engine of the group; ends only by cancellation."""
        while True:
            self._wake.clear()
            live = [r for r in self._resident.values() if not r.finished.done()]
            self._stepping = frozenset(request.attempt for request in live)
            try:
                await self._make_room(live)
                batch = [r for r in live if r.row is not None and r.row.tokens < r.row.capacity]
                if batch:
                    await self._steps.begin()
                    await self._step(batch)
            finally:
                async with self._stepped:
                    self._stepping = frozenset()
                    self._stepped.notify_all()
            if batch:
                await self._on_step()
            elif await self._steps.begin(self._wake):
                await self._step([])

    async def _step(self, batch: list[DecodeRequest]) -> None:
        rows = [request.row for request in batch if request.row is not None]
        began = time.monotonic()
        try:
            sampled = await self.backend.decode(rows)
        except CollectiveError as error:
            for request in batch:
                request.fail(error)
            return
        if not rows:
            return
        self._on_forward(len(rows), time.monotonic() - began)
        self.steps += 1
        for request, row, token in zip(batch, rows, sampled, strict=True):
            if token is None:
                request.fail(
                    DamagedKV("the model's logits are no numbers: its KV-Cache is damaged")
                )
            else:
                self.tokens += 1
                await self._append(request, row, token)

    async def _append(self, request: DecodeRequest, row: DecodeRow, token: Sampled) -> None:
        """The step gave `last_token` its KV and sampled `token`: persist a block that is full now, go on."""
        sequence = request.sequence
        assert sequence is not None
        block = self._geometry.full_blocks(row.tokens)
        fresh = sequence.extend([row.last_token])
        row.tokens += 1
        row.last_token = token.token_id
        row.index += 1
        row.parent_key, row.block_ids = sequence.parent, list(sequence.tail)
        for key in fresh:
            request.stores.extend(
                await self._write_back.decoded_block(key, row, block, self._copies)
            )
        if request.finished.done():
            return
        generated = request.take(token)
        reason = finish_reason(
            row.sampling,
            generated=generated,
            token_id=token.token_id,
            room_tokens=self._max_context - row.tokens - 1,
        )
        if reason is not None:
            request.end(reason)
        elif row.history is not None:
            try:
                row.history.append(token.token_id)
            except ModelError as error:
                request.fail(error)

    # ── HBM while decoding ─────────────────────────────────────────────────────────────────────────
    async def _make_room(self, live: list[DecodeRequest]) -> None:
        """Give every row room for one more token, pre-empting the youngest where needed.

        A row whose victims are just being admitted keeps its size and sits out until they are.
        """
        for request in live:
            row = request.row
            if row is None or row.tokens < row.capacity:
                continue
            tokens = self._growth(row.capacity)
            if self.ledger.allocated_tokens + tokens > self.ledger.capacity_tokens:
                tokens = self._geometry.block_tokens
            victims = self.ledger.grow(request.attempt, tokens)
            if victims:
                if any(victim not in self._resident for victim in victims):
                    continue
                for victim in victims:
                    self._preempt(self._resident[victim])
                if request.row is None or self.ledger.grow(request.attempt, tokens):
                    continue
            try:
                await self._regrow(request, row, row.capacity + tokens)
            except TransportError as error:
                request.fail(error)

    def _growth(self, capacity: int) -> int:
        block = self._geometry.block_tokens
        return max(capacity // GROW_SHARE // block, 1) * block

    async def _regrow(self, request: DecodeRequest, row: DecodeRow, capacity: int) -> None:
        geometry = self._geometry
        kv = self.backend.allocate(geometry.flat_bytes(capacity))
        try:
            copies = []
            for layer in range(geometry.n_layers):
                size = row.tokens * geometry.row_bytes[layer]
                old = geometry.flat_offset(row.capacity, layer, 0)
                new = geometry.flat_offset(capacity, layer, 0)
                await self._copies.to_host(row.kv, old, old + size)
                copies.append((kv.wire[new : new + size], row.kv.wire[old : old + size]))
            await self._copier.run(copies)
            await self._to_device(kv, capacity, row.tokens)
        except BaseException:
            kv.free()
            raise
        row.kv.free()
        row.kv, row.capacity = kv, capacity

    def _preempt(self, request: DecodeRequest) -> None:
        self._resident.pop(request.attempt)
        self._free_row(request)
        request.fail(Preempted("out of HBM; the youngest request gives way"))

    # ── end ────────────────────────────────────────────────────────────────────────────────────────
    async def evict(self, request: DecodeRequest) -> None:
        """Free the request's HBM; returns once no step reads it. Does nothing for one that holds none."""
        await finish(self._evict(request))

    async def _evict(self, request: DecodeRequest) -> None:
        if not request.finished.done():
            request.finished.cancel()
        async with self._stepped:
            await self._stepped.wait_for(lambda: request.attempt not in self._stepping)
            if self._resident.pop(request.attempt, None) is not None:
                self._free_row(request)

    def _free_row(self, request: DecodeRequest) -> None:
        if request.row is not None:
            request.row.kv.free()
            request.row = None
        self.ledger.release(request.attempt)
        self._grant_hbm()
        self._wake.set()
