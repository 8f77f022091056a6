"""Both nodes, one request: every read path gives the right tokens and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.nats import NatsServer
from tests.support.rig import prompt, rig, right

from dualpath.transport.frames import Header
from dualpath.transport.samehost import available
from dualpath.transport.samehost.link import SameHostLink
from dualpath.wire.types import ReadPath

PATHS: tuple[ReadPath, ...] = ("prefill", "decode", "split")


@pytest.mark.parametrize("layerwise", [True, False])
async def test_cold_and_warm_by_every_path(
    nats_server: NatsServer, tmp_path: Path, layerwise: bool
) -> None:
    async with rig(nats_server, tmp_path, layerwise=layerwise, chunk_tokens=200) as it:
        for n in (1, 63, 64, 65, 128, 129, 1000):
            ids = prompt(n, n)
            cold = await it.generate(ids, 70)
            assert cold.tokens == right(it, cold, 70)
            assert cold.stats.hit_tokens == 0
            for path in PATHS:
                warm = await it.generate(ids, 70, path)
                hits = it.geometry.max_hit_blocks(n)
                assert warm.tokens == cold.tokens, path
                assert warm.stats.hit_tokens == hits * 64
                assert warm.stats.read_path == (path if hits else "none")
        await it.idle()


@pytest.mark.skipif(not available(), reason="this kernel cannot seal memory")
async def test_all_kv_between_nodes_of_one_host_is_read_where_it_is(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of the buffers and out of the device."""
    pulled: list[int] = []
    pull = SameHostLink._pull

    def counted(link: SameHostLink, header: Header, payload: bytes) -> int:
        pulled.append(pull(link, header, payload))
        return pulled[-1]

    monkeypatch.setattr(SameHostLink, "_pull", counted)
    shape = {"layers": 4, "row_bytes": 1024}
    async with rig(nats_server, tmp_path, same_host="shared-memory", synthetic=shape) as it:
        ids = prompt(400, 1)
        assert (await it.generate(ids, 2)).stats.hit_tokens == 0
        for path in PATHS:
            await it.idle()
            pulled.clear()
            warm = await it.generate(ids, 2, path)
            assert warm.tokens == right(it, warm, 2), path
            # To the PE what the DE has read, to the DE all else: together each token once.
            assert sum(pulled) == len(ids) * it.geometry.token_bytes, path
        await it.idle()
