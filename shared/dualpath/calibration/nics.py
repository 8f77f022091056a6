"""Measures NICs: reads from storage through the SNIC, writes between engines through a CNIC."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from dualpath.kvstore.api import BlockStore, ReadStatus, WriteStatus
from dualpath.transport.api import Endpoint
from dualpath.wire.types import Address

_SECONDS = 1.0
"""How long the steady part of a measurement lasts at least."""

_MOST_BYTES = 64 << 20
_IN_FLIGHT = 4
_DEADLINE_S = 60.0


class NotMeasured(Exception):
    """A NIC could not be measured; the text says why, and what to do."""


class ByteRegion:
    """Memory of this process that a peer writes into."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._memory = memoryview(bytearray(nbytes))

    def resolve(self, offset: int, nbytes: int) -> Sequence[memoryview]:
        return [self._memory[offset : offset + nbytes]]

    def on_write(self, imm: int) -> None:
        return


def volume(bandwidth: float | None, unit: int) -> int:
    """Units of `unit` bytes: a second's worth of an emulated bandwidth, 64 MiB at most, four at least."""
    nbytes = _MOST_BYTES if bandwidth is None else min(bandwidth * _SECONDS, _MOST_BYTES)
    return max(int(nbytes) // unit, _IN_FLIGHT)


async def measure_reads(store: BlockStore, block_bytes: int, blocks: int) -> float:
    """Bytes per second of reads of Full Blocks through the store, checksums verified. Leaves `blocks` random ones.

    Raises NotMeasured.
    """
    keys = [os.urandom(16) for _ in range(blocks)]
    written = await store.write(
        keys, [memoryview(os.urandom(block_bytes)) for _ in keys], deadline_s=_DEADLINE_S
    )
    if any(status is WriteStatus.NOT_STORED for status in written):
        raise NotMeasured("the shard stores nothing: its disk is full, or not writable")
    into = [memoryview(bytearray(block_bytes)) for _ in keys]
    parts = [slice(start, None, _IN_FLIGHT) for start in range(_IN_FLIGHT)]

    async def read(part: slice) -> int:
        statuses = await store.read(keys[part], into[part], deadline_s=_DEADLINE_S)
        if any(status is not ReadStatus.FOUND for status in statuses):
            raise NotMeasured("blocks that were just stored could not be read back")
        return len(statuses) * block_bytes

    return await _rate([partial(read, part) for part in parts])


async def measure_writes(sender: Endpoint, receiver: Address, key: int, nbytes: int) -> float:
    """Bytes per second of one-sided writes into a region of `nbytes`, which `key` opens. Raises TransportError."""
    source = memoryview(os.urandom(nbytes))

    async def write() -> int:
        await sender.write(receiver, key, 0, [source])
        return nbytes

    return await _rate([write] * _IN_FLIGHT)


async def _rate(streams: Sequence[Callable[[], Coroutine[Any, Any, int]]]) -> float:
    """Each stream again and again for a while, after one that warms up: bytes per second, up to the last end."""
    await asyncio.gather(*(once() for once in streams))
    began = time.perf_counter()

    async def stream(once: Callable[[], Coroutine[Any, Any, int]]) -> int:
        moved = await once()
        while time.perf_counter() - began < _SECONDS:
            moved += await once()
        return moved

    moved = sum(await asyncio.gather(*(stream(once) for once in streams)))
    return moved / (time.perf_counter() - began)
