"""One request in one forward: its KV arrives in the ring layer by layer, and leaves it again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from dualpath.memory.arena import Arena, SlotRegion
from dualpath.memory.hbm import Budget
from dualpath.model.api import Backend, PrefillRow
from dualpath.node.copies import Copier
from dualpath.node.device_copies import DeviceCopies
from dualpath.node.engine_group import Steps
from dualpath.prefill.request import PrefillRequest
from dualpath.prefill.ring import Ring
from dualpath.prefill.trace import ForwardTrace
from dualpath.tasks import together
from dualpath.transport.api import Endpoint, TransportError
from dualpath.wire import data
from dualpath.wire.codec import encode
from dualpath.wire.types import TokenScores


@dataclass(frozen=True)
class EngineParts:
    """What an engine's forwards work with."""

    backend: Backend
    endpoint: Endpoint
    arena: Arena
    copies: DeviceCopies
    copier: Copier
    budget: Budget
    layerwise: bool
    ring_depth: int
    """Layers of a request on the device at a time; all of them unless `layerwise`."""
    arrival_deadline_s: float
    """How long a layer may take, or its DE may send nothing for it."""
    steps: Steps


class ForwardRow:
    """`new` tokens of a request, after its `cached_tokens`.

    A row that fails is dead: its KV no longer moves, the forward goes on without it (paper §2 batches
    requests; one peer's failure must not stop the others). `failure` says why.
    """

    def __init__(
        self, request: PrefillRequest, new: int, parts: EngineParts, trace: ForwardTrace
    ) -> None:
        self.request = request
        self.new = new
        self.prefix = request.cached_tokens
        self.failure: Exception | None = None
        self.scores: TokenScores | None = None
        """Of the prompt's tokens from `prefix` + 1 on, once the forward has ended, where they are wanted."""
        self._parts = parts
        self._trace = trace
        self._geometry = request.geometry
        n_layers = self._geometry.n_layers
        self._arrived = [asyncio.Event() for _ in range(n_layers)]
        self._pushed: dict[int, asyncio.Future[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._first_chunk = request.chunks == 0
        self._own: SlotRegion | None = None
        """The PE's share in host memory."""
        self.ring = self._open_ring()
        self._left = [asyncio.Event() for _ in range(n_layers)]

    def _open_ring(self) -> Ring:
        request, parts = self.request, self._parts
        if request.resident is not None:
            return request.resident
        whole = request.assign.prompt_tokens
        ring = Ring(
            parts.backend,
            parts.endpoint,
            parts.budget,
            tokens=self.prefix + self.new if parts.layerwise else whole,
            depth=parts.ring_depth,
            on_layer=self._on_push,
        )
        if not parts.layerwise:
            request.resident = ring
        return ring

    @property
    def dead(self) -> bool:
        return self.failure is not None

    @property
    def last(self) -> bool:
        """This chunk ends the prompt."""
        return self.prefix + self.new == self.request.assign.prompt_tokens

    def batch_row(self) -> PrefillRow:
        request, start, stop = self.request, self.prefix, self.prefix + self.new
        sampling = request.assign.sampling
        aligned = self._geometry.full_blocks(start) * self._geometry.block_tokens
        return PrefillRow(
            token_ids=request.ids(start, stop),
            prefix_tokens=start,
            sample=sampling if self.last else None,
            index=request.assign.generated,
            parent_key=request.parent_key(start),
            block_ids=request.ids(aligned, start) if aligned < start else (),
            history=request.history,
            scored_ids=request.ids(start + 1, stop + 1) if sampling.prompt_logprobs else (),
            scored_top=sampling.top_logprobs or 0,
        )

    def fail(self, reason: Exception) -> None:
        """Declare the row dead; the first reason stands."""
        if self.failure is None:
            self.failure = reason
        for event in self._arrived:
            event.set()
        for task in self._tasks:
            task.cancel()

    # ── arriving ───────────────────────────────────────────────────────────────────────────────────
    @property
    def _remote(self) -> tuple[int, int]:
        """Cached rows that come from the DE: its share at first, then everything before the chunk."""
        if self._first_chunk:
            return self.request.own_tokens, self.prefix
        return 0, self.prefix

    def start(self) -> None:
        """Let the cached layers come, as the ring has room. Nothing to do where they are there already."""
        if not self._first_chunk and not self._parts.layerwise:
            for event in self._arrived:
                event.set()
            return
        self.run(self._feed())

    async def _feed(self) -> None:
        depth, n_layers = self.ring.depth, self._geometry.n_layers
        await self._let_come(range(min(depth, n_layers)))
        for layer in range(depth, n_layers):
            # The very layer that this one takes the place of: others may have left before it.
            await self._left[layer - depth].wait()
            await self._let_come((layer,))

    async def _let_come(self, layers: Sequence[int]) -> None:
        """Layers that have places in the ring."""
        start, stop = self._remote
        for layer in layers:
            self._trace.mark("arrive", layer)
            if start < stop:
                self._pushed[layer] = asyncio.get_running_loop().create_future()
            self.run(self._arrive(layer))
        if start < stop:
            places = tuple((layer, self.ring.offset(layer, start)) for layer in layers)
            grant = data.Grant(self.request.attempt, places, start, stop, self.ring.key)
            await self._parts.endpoint.send(self.request.assign.decode, encode(grant))

    async def _arrive(self, layer: int) -> None:
        await self._copy_own(layer)
        if layer in self._pushed:
            await self._push_of(layer, self._pushed[layer])
        await self._parts.copies.to_device(
            self.ring.buffer, self.ring.offset(layer), self.ring.offset(layer, self.prefix)
        )
        self._trace.mark("arrived", layer)
        self._arrived[layer].set()

    async def _copy_own(self, layer: int) -> None:
        """H2D of the PE's share, charged to the CNIC as the loopback write that it is (paper §4)."""
        tokens = self.request.own_tokens if self._first_chunk else 0
        if not tokens:
            return
        if self._own is None:
            self._own = SlotRegion(self._parts.arena, self.request.slots, self._geometry)
        copies, at = [], self.ring.offset(layer)
        for piece in self._own.rows(layer, 0, tokens):
            copies.append((self.ring.buffer.wire[at : at + len(piece)], piece))
            at += len(piece)
        await self._parts.copies.charge(tokens * self._geometry.row_bytes[layer])
        await self._parts.copier.run(copies)

    async def _push_of(self, layer: int, pushed: asyncio.Future[None]) -> None:
        """Wait for the DE: for as long as bytes of this row come, where no other engine waits with it.

        Raises TransportError.
        """
        deadline_s = self._parts.arrival_deadline_s
        while not pushed.done():
            before = self.ring.arrivals
            await asyncio.wait([pushed], timeout=deadline_s)
            alive = self.ring.arrivals != before and not self._parts.steps.together
            if not (pushed.done() or alive):
                raise TransportError(
                    f"layer {layer} did not arrive from {self.request.assign.decode_node} within {deadline_s} s"
                )

    def _on_push(self, layer: int) -> None:
        pushed = self._pushed.get(layer)
        if pushed is not None and not pushed.done():
            pushed.set_result(None)

    async def arrived(self, layer: int) -> None:
        """Return when `layer` can be computed: all its cached rows are there, or the row is dead."""
        await self._arrived[layer].wait()

    # ── leaving ────────────────────────────────────────────────────────────────────────────────────
    def leave(self, layer: int) -> None:
        """Send what the DE does not have yet of a computed layer; then its place in the ring is free."""
        self.run(self._leave(layer))

    async def _leave(self, layer: int) -> None:
        self._trace.mark("leave", layer)
        stop = self.prefix + self.new
        own = self.request.own_tokens if self._first_chunk else 0
        ranges = [(0, stop)] if own == self.prefix else [(0, own), (self.prefix, stop)]
        # What is cached came by the window.
        await self._parts.copies.to_host(
            self.ring.buffer, self.ring.offset(layer, self.prefix), self.ring.offset(layer, stop)
        )
        # Where one fails the other has ended, too, before the ring is freed.
        await together([self._write(layer, a, b) for a, b in ranges if a < b])
        self._trace.mark("left", layer)
        self._left[layer].set()

    async def _write(self, layer: int, start: int, stop: int) -> None:
        request, geometry = self.request, self._geometry
        capacity = geometry.blocks_for(request.assign.prompt_tokens) * geometry.block_tokens
        await self._parts.endpoint.write(
            request.assign.decode,
            request.assign.region_key,
            geometry.flat_offset(capacity, layer, start),
            [self.ring.rows(layer, start, stop)],
        )

    # ── end ────────────────────────────────────────────────────────────────────────────────────────
    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` as a part of this row: it ends before `drain` does, and if it fails, so does the row."""
        if self.dead:
            work.close()
            return
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.fail(error)

    async def drain(self) -> None:
        """Wait until nothing of this row moves any more; free the ring (kept where it is resident and the
        prompt goes on)."""
        at = 0
        while at < len(self._tasks):
            at += len(await asyncio.gather(*self._tasks[at:], return_exceptions=True))
        if self.ring is not self.request.resident:
            await self.ring.close()
