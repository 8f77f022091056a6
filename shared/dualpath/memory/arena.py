"""Host memory in slots of one Full Block each (PE buffer, DE buffer), and regions over it."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

from dualpath.blocks import KVGeometry
from dualpath.memory.admission import slot_stride
from dualpath.memory.shared import SharedMemory
from dualpath.memory.slots import Granted, SlotPool
from dualpath.wire.types import PoolUse


class Arena:
    """`slots` slots of `slot_bytes` in one memfd, which processes of this host may map to read.

    Belongs to one event loop. Slots are owned by whoever acquired them until `release`; of those, the last
    `reserved` can only be had from `take_reserved`. With `hot` it is the hot tier as well: slots that are given
    back clean go to whoever asks for their block, until somebody needs the room (see `SlotPool`).
    """

    def __init__(
        self, name: str, slot_bytes: int, slots: int, reserved: int = 0, *, hot: bool = False
    ) -> None:
        if slot_bytes < 1 or slots < 1:
            raise ValueError(
                f"arena {name} would have {slots} slots of {slot_bytes} bytes; it needs at least one of one byte"
            )
        self.name = name
        self.slot_bytes = slot_bytes
        self._pool = SlotPool(slots, reserved)
        self._tickets = count()
        self._keeps = hot
        self._waiters: dict[object, tuple[asyncio.Future[Granted], Sequence[bytes]]] = {}
        self._stride = slot_stride(slot_bytes)
        self._shared = SharedMemory(name, self._stride * slots)
        self._memory = self._shared.view
        self._closed = False

    @property
    def total(self) -> int:
        return self._pool.total

    @property
    def prompt_slots(self) -> int:
        """The most that `acquire` can give: all but the reserve."""
        return self._pool.total - self._pool.reserved

    @property
    def shared(self) -> SharedMemory:
        """Where the slots are; slot s begins at `s · slot_stride(slot_bytes)`. Stays the arena's."""
        return self._shared

    @property
    def memory(self) -> memoryview:
        """All of it, with the gaps between slots."""
        return self._memory

    async def acquire(self, n: int) -> list[int]:
        """Wait for `n` slots, first come first served, all or nothing (none are waited for where n is 0).

        The caller owns what is returned; a cancelled call owns nothing. Raises ValueError where the arena can
        never give so many.
        """
        return (await self.acquire_for((), n)).slots

    async def acquire_for(self, keys: Sequence[bytes], n: int) -> Granted:
        """`acquire` slots for the blocks of a chain, of which the arena may have some: those of its `hot` hold
        their block already. Waits no longer for it. What is done to such a slot is the caller's affair."""
        ticket = next(self._tickets)
        if n == 0:
            return Granted(ticket, [], frozenset())
        self._pool.enqueue(ticket, n, keys)
        granted: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = granted, keys
        self._serve()
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._give_back(granted.result(), keys)
            self._pool.cancel(ticket)
            self._waiters.pop(ticket, None)
            self._serve()
            raise

    def take_reserved(self) -> int | None:
        """A write-back slot, or None where all are taken; never waits."""
        return self._pool.take_reserved()

    def release(self, slots: Iterable[int], clean: Mapping[int, bytes] | None = None) -> None:
        """Give slots back and serve who waits. Only when nobody reads or writes them any more. `clean` names the
        blocks that slots hold, in the order of their chain: only what was compared with its checksum, or was
        written here and has been stored. Raises ValueError where one of them is not taken."""
        self._pool.release(slots, clean if self._keeps else None)
        self._serve()

    def _give_back(self, granted: Granted, keys: Sequence[bytes]) -> None:
        """What nobody has got to see is as it was."""
        self._pool.release(
            granted.slots, {granted.slots[index]: keys[index] for index in sorted(granted.hot)}
        )

    def _serve(self) -> None:
        while granted := self._pool.grants():
            for one in granted:
                waiter, keys = self._waiters.pop(one.ticket)
                if waiter.done():
                    # Cancelled in this turn of the loop, and not yet woken to leave the queue.
                    self._give_back(one, keys)
                else:
                    waiter.set_result(one)

    def view(self, slot: int) -> memoryview:
        """The slot's bytes: writable, format "B", `slot_bytes` long."""
        if not 0 <= slot < self._pool.total:
            raise ValueError(f"arena {self.name} has no slot {slot}; it has {self._pool.total}")
        start = slot * self._stride
        return self._memory[start : start + self.slot_bytes]

    def pool_use(self) -> PoolUse:
        pool = self._pool
        return PoolUse(self.name, pool.used, pool.total, pool.waiting, pool.clean)

    def hot_counters(self) -> dict[str, int]:
        """What the hot tier did; nothing where there is none."""
        if not self._keeps:
            return {}
        return {"hot_hits": self._pool.hot_hits, "hot_evicted": self._pool.hot_evicted}

    def reserved_use(self) -> PoolUse:
        """Use of the reserve alone, as `<name>_reserved`."""
        pool = self._pool
        return PoolUse(f"{self.name}_reserved", pool.reserved_used, pool.reserved)

    def close(self) -> None:
        """Cancel who waits and drop the memory. It is unmapped once the last view of it is gone."""
        if self._closed:
            return
        self._closed = True
        for waiter, _ in self._waiters.values():
            waiter.cancel()
        self._memory.release()
        self._shared.close()


def ignore(imm: int) -> None:
    """For regions whose owner need not know what has landed."""


class SlotRegion:
    """A request's slots as one region, addressed layer-major: `[layers, capacity, row]` (see
    `KVGeometry.flat_offset`), with capacity = slots · block_tokens.

    Block b of the request is in `slots[b]`, as a Full Block. The slots stay their owner's.
    """

    def __init__(
        self,
        arena: Arena,
        slots: Sequence[int],
        geometry: KVGeometry,
        on_write: Callable[[int], None] = ignore,
    ) -> None:
        if arena.slot_bytes < geometry.full_block_bytes:
            raise ValueError(
                f"slots of {arena.slot_bytes} bytes cannot hold Full Blocks of {geometry.full_block_bytes}"
            )
        self.geometry = geometry
        self.capacity_tokens = len(slots) * geometry.block_tokens
        self._views = [arena.view(slot) for slot in slots]
        self._on_write = on_write
        self._layer_starts = [self.capacity_tokens * start for start in geometry.row_starts]

    @property
    def nbytes(self) -> int:
        return self._layer_starts[-1]

    def on_write(self, imm: int) -> None:
        self._on_write(imm)

    def resolve(self, offset: int, nbytes: int) -> list[memoryview]:
        """The pieces of [offset, offset + nbytes), one per layer and block that it touches."""
        end = offset + nbytes
        if nbytes < 0 or offset < 0 or end > self.nbytes:
            raise ValueError(
                f"bytes [{offset}, {end}) lie outside of this region of {self.nbytes} bytes"
            )
        pieces: list[memoryview] = []
        layer = bisect_right(self._layer_starts, offset) - 1
        while offset < end:
            start, next_start = self._layer_starts[layer], self._layer_starts[layer + 1]
            stop = min(end, next_start)
            self._collect(pieces, layer, offset - start, stop - start)
            offset, layer = stop, layer + 1
        return pieces

    def rows(self, layer: int, start: int, stop: int) -> list[memoryview]:
        """The pieces that hold tokens [start, stop) of one layer, in order."""
        if not 0 <= start <= stop <= self.capacity_tokens:
            raise ValueError(
                f"tokens [{start}, {stop}) lie outside of this region of {self.capacity_tokens} tokens"
            )
        row = self.geometry.row_bytes[layer]
        pieces: list[memoryview] = []
        self._collect(pieces, layer, start * row, stop * row)
        return pieces

    def _collect(self, pieces: list[memoryview], layer: int, start: int, stop: int) -> None:
        """Append the pieces of bytes [start, stop) of a layer `[capacity, row]`."""
        base = self.geometry.layer_offset(layer)
        size = self.geometry.block_tokens * self.geometry.row_bytes[layer]
        block, within = divmod(start, size)
        left = stop - start
        while left > 0:
            n = min(size - within, left)
            pieces.append(self._views[block][base + within : base + within + n])
            block, within, left = block + 1, 0, left - n


class BufferRegion:
    """A region over one piece of memory; the memory stays its owner's."""

    def __init__(self, view: memoryview, on_write: Callable[[int], None] = ignore) -> None:
        self._view = view
        self._on_write = on_write
        self.frames = 0
        """So many parts of writes have begun to arrive."""

    @property
    def nbytes(self) -> int:
        return self._view.nbytes

    def on_write(self, imm: int) -> None:
        self._on_write(imm)

    def resolve(self, offset: int, nbytes: int) -> list[memoryview]:
        self.frames += 1
        return [self._view[offset : offset + nbytes]]
