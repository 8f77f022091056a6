"""Layers of a request travel between a ring and a decode node's slots, as one extent each."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from tests.support.transport import Make

from dualpath.blocks import KVGeometry, KVPart
from dualpath.memory.admission import slot_stride
from dualpath.memory.arena import Arena, BufferRegion, SlotRegion

GEOMETRY = KVGeometry(16, ((KVPart("k", 96), KVPart("v", 32)), (KVPart("latent", 72),)) * 3)
BLOCK = GEOMETRY.full_block_bytes


@pytest.fixture
async def arena() -> AsyncIterator[Arena]:
    made = Arena("de", BLOCK, 64)
    yield made
    made.close()


async def test_new_rows_of_each_layer_land_in_the_slots(make: Make, arena: Arena) -> None:
    prefill, decode = await make("pe.cnic"), await make("de.cnic")
    decode.pin(arena.memory)
    held = await arena.acquire(20)
    slots = held[::-2]  # Not in the order of addresses.
    landed: list[int] = []
    region = SlotRegion(arena, slots, GEOMETRY, landed.append)
    key = decode.register(region)
    start, stop = 37, 150
    data = random.Random(1)
    layers = [data.randbytes((stop - start) * row) for row in GEOMETRY.row_bytes]
    for layer, rows in enumerate(layers):
        offset = GEOMETRY.flat_offset(region.capacity_tokens, layer, start)
        await prefill.write(decode.address, key, offset, [rows], imm=layer)
    assert landed == list(range(GEOMETRY.n_layers))
    assert [b"".join(region.rows(i, start, stop)) for i in range(len(layers))] == layers
    outside = [(0, start), (stop, region.capacity_tokens)]
    assert not any(any(b"".join(region.rows(0, a, b))) for a, b in outside)
    await decode.revoke(key)
    arena.release(held)


async def test_hits_are_pushed_out_of_the_slots_into_a_ring(make: Make, arena: Arena) -> None:
    prefill, decode = await make("pe.cnic"), await make("de.cnic")
    decode.pin(arena.memory)
    slots = await arena.acquire(5)
    draw = random.Random(2)
    for slot in slots:
        arena.view(slot)[:] = draw.randbytes(BLOCK)
    region = SlotRegion(arena, slots, GEOMETRY)
    place = region.capacity_tokens * GEOMETRY.max_row_bytes
    ring = memoryview(bytearray(3 * place))
    key = prefill.register(BufferRegion(ring))
    for layer, row in enumerate(GEOMETRY.row_bytes):
        offset = layer % 3 * place
        pieces = region.rows(layer, 0, 70)
        assert len(pieces) == 5
        await decode.write(prefill.address, key, offset, pieces)
        assert bytes(ring[offset : offset + 70 * row]) == b"".join(pieces)
    await prefill.revoke(key)
    arena.release(slots)


def test_another_process_can_map_the_arena_by_slot_but_only_to_read() -> None:
    arena, slot = Arena("de", BLOCK, 3), 2
    arena.view(slot)[:5] = b"hello"
    script = (
        "import mmap, sys; fd, size, at = map(int, sys.argv[1:]);"
        "memory = mmap.mmap(fd, size, prot=mmap.PROT_READ); print(memory[at:at + 5].decode());"
        "mmap.mmap(fd, size)"
    )
    size = os.fstat(arena.shared.fd).st_size
    answer = subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            str(arena.shared.fd),
            str(size),
            str(slot * slot_stride(BLOCK)),
        ],
        pass_fds=[arena.shared.fd],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout == "hello\n"
    assert "PermissionError" in answer.stderr
    assert size % mmap.PAGESIZE == 0
    arena.close()
