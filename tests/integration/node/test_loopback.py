"""Both nodes, with devices whose memory is apart from their windows: whoever copies, the tokens are right."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.integration.node.test_families import NEW, draw
from tests.support import rig as rig_module
from tests.support.checkpoints import write_checkpoint
from tests.support.nats import NatsServer
from tests.support.reference import reference_greedy
from tests.support.rig import Rig, rig
from tests.support.staged import MirroredBackend
from tests.support.transport import needs_rdma

from dualpath.lanes.api import Lane
from dualpath.memory.device import DeviceBuffer
from dualpath.node.device_copies import DeviceMakes, NicMakes
from dualpath.wire import control
from dualpath.wire.types import ReadPath

RDMA = {"transport": "rdma", "rdma_devices": ("lo",)}


@asynccontextmanager
async def mirrored(
    server: NatsServer, home: Path, directory: Path, **settings: Any
) -> AsyncIterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig_module, "load_backend", MirroredBackend)
        model: dict[str, Any] = {
            "model": str(directory),
            "dtype": "float32",
            "threads": 1,
            "chunk_tokens": 100,
        }
        async with rig(server, home, **model, **settings) as it:
            yield it


@pytest.mark.parametrize(
    "settings", [{}, pytest.param(RDMA, marks=needs_rdma)], ids=["device", "nic"]
)
async def test_kv_is_copied_to_the_device_and_back(
    nats_server: NatsServer,
    tmp_path: Path,
    settings: dict[str, Any],
) -> None:
    directory = tmp_path / "llama"
    directory.mkdir()
    write_checkpoint(directory, "llama", files=2)
    ids = draw(directory, 240)
    right = reference_greedy(directory, ids, NEW)
    async with mirrored(nats_server, tmp_path, directory, **settings) as it:
        for path in get_args(ReadPath):
            run = await it.generate(ids, NEW, path)
            assert run.tokens == right, path
        # The block that filled while decoding was copied off the device, and the row grew there.
        known = 4 * it.geometry.block_tokens - len(ids) + 1
        run = await it.generate(ids + right[:known], NEW - known, "prefill")
        assert run.stats.hit_tokens == 4 * it.geometry.block_tokens
        assert run.tokens == right[known:]
        await it.idle()
        copies = [*it.prefill.device_copies, *it.decode.device_copies]
        kind = NicMakes if settings else DeviceMakes
        assert [type(each) for each in copies] == [kind, kind]
        # All prompts came to the decode device.
        moved = it.decode.cnics[0].moved()[Lane.LOW, "tx"]
        assert moved >= 4 * len(ids) * it.geometry.token_bytes


@needs_rdma
async def test_a_cnic_that_cannot_copy_costs_the_attempt_alone(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    directory = tmp_path / "llama"
    directory.mkdir()
    write_checkpoint(directory, "llama", files=2)
    ids = [random.Random(1).randrange(260, 512) for _ in range(240)]
    async with mirrored(nats_server, tmp_path, directory, **RDMA) as it:
        (copies,) = it.decode.device_copies
        assert isinstance(copies, NicMakes)
        loopback = copies._loopback
        to_host, deadline_s = loopback.to_host, loopback._deadline_s

        async def too_late(buffer: DeviceBuffer, start: int, stop: int) -> None:
            loopback._deadline_s = 0.0
            try:
                await to_host(buffer, start, stop)
            finally:
                loopback._deadline_s = deadline_s

        loopback.to_host = too_late  # type: ignore[method-assign]
        # The block that fills is not stored; then the row cannot grow.
        lost = await it.generate(ids, NEW)
        assert lost.lost is not None
        assert "a copy through d0.cnic0 itself failed" in lost.lost.reason
        assert it.decode.counters()["blocks_not_stored"] == 1
        await it.tell("p0", control.Abort(lost.attempt, "lost"))
        await it.idle()
        loopback.to_host = to_host  # type: ignore[method-assign]
        again = await it.generate(ids, NEW)
        assert len(again.tokens) == NEW
        await it.idle()
