"""Blocks by number, for tests of the store: what each is made of follows from its key."""

from __future__ import annotations

import random

from dualpath.kvstore.api import BlockStore, ReadStatus, WriteStatus

SIZE = 10_000


def keys(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


def block(key: bytes, size: int = SIZE) -> memoryview:
    return memoryview(random.Random(key).randbytes(size))


async def write(store: BlockStore, *numbers: int, size: int = SIZE) -> list[WriteStatus]:
    names = keys(*numbers)
    return await store.write(names, [block(name, size) for name in names], deadline_s=30)


async def read(store: BlockStore, *numbers: int, size: int = SIZE) -> list[ReadStatus]:
    names = keys(*numbers)
    into = [bytearray(size) for _ in names]
    statuses = await store.read(names, [memoryview(view) for view in into], deadline_s=30)
    for name, view, status in zip(names, into, statuses, strict=True):
        assert status is not ReadStatus.FOUND or view == block(name, size)
    return statuses
