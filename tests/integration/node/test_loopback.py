"""Both nodes, with devices whose memory is apart from their windows: whoever copies, the tokens are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from tests.integration.node.test_families import NEW, draw
from tests.support import rig as rig_module
from tests.support.checkpoints import write_checkpoint
from tests.support.nats import NatsServer
from tests.support.reference import reference_greedy
from tests.support.rig import rig
from tests.support.staged import MirroredBackend
from tests.support.transport import needs_rdma

from dualpath.lanes.api import Lane
from dualpath.node.device_copies import DeviceMakes, NicMakes
from dualpath.wire.types import ReadPath

RDMA = {"transport": "rdma", "rdma_devices": ("lo",)}


@pytest.mark.parametrize(
    "settings", [{}, pytest.param(RDMA, marks=needs_rdma)], ids=["device", "nic"]
)
async def test_kv_is_copied_to_the_device_and_back(
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    directory = tmp_path / "llama"
    directory.mkdir()
    write_checkpoint(directory, "llama", files=2)
    ids = draw(directory, 240)
    right = reference_greedy(directory, ids, NEW)
    monkeypatch.setattr(rig_module, "load_backend", MirroredBackend)
    async with rig(
        nats_server,
        tmp_path,
        model=str(directory),
        dtype="float32",
        threads=1,
        chunk_tokens=100,
        **settings,
    ) as it:
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
