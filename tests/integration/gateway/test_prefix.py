"""The estimate, from real shards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from dualpath.blocks import BlockKeys, root_key
from dualpath.gateway import prefix
from dualpath.gateway.prefix import PrefixEstimate, StoreConnection
from dualpath.lanes.nic import PacedNic
from dualpath.model.prepare import prepare_model
from dualpath.model.spec import ModelSpec, load_spec
from dualpath.settings import Settings
from dualpath.storage.shard import StorageShard
from dualpath.transport.tcp import TcpEndpoint


@pytest_asyncio.fixture
async def shards(
    tmp_path: Path, gateway_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[list[StorageShard], StoreConnection, ModelSpec]]:
    # A machine that stands still for a moment is no reason to estimate nothing.
    monkeypatch.setattr(prefix, "ESTIMATE_S", 60.0)
    secret = (gateway_settings.secret or "").encode()
    prepare_model(gateway_settings, lambda line: None)
    spec = load_spec(gateway_settings)
    async with AsyncExitStack() as stack:
        running = []
        for number in range(2):
            name = f"storage-{number}"
            endpoint = TcpEndpoint(
                name,
                host="127.0.0.1",
                nic=PacedNic(f"{name}.snic"),
                secret=secret,
            )
            shard = StorageShard(name, tmp_path / name, endpoint, staging_bytes=16 << 20)
            await shard.start()
            stack.push_async_callback(shard.close)
            running.append(shard)
        addresses = tuple(f"{s.shard_id}={s.address.host}:{s.address.port}" for s in running)
        settings = gateway_settings.model_copy(update={"shard_addresses": addresses})
        connection = StoreConnection(settings, spec, "gateway-0")
        await connection.start()
        stack.push_async_callback(connection.close)
        yield running, connection, spec


async def test_the_longest_stored_prefix_is_found_and_a_dead_shard_costs_only_hits(
    shards: tuple[list[StorageShard], StoreConnection, ModelSpec],
) -> None:
    running, connection, spec = shards
    block_tokens = spec.geometry.block_tokens
    sequence = BlockKeys(root_key(spec.fingerprint), block_tokens)
    sequence.extend(range(8 * block_tokens))
    keys = sequence.keys
    estimate = PrefixEstimate(spec.geometry, connection.store)
    prompt_tokens = 8 * block_tokens
    assert await estimate.hit_blocks(keys, prompt_tokens) == 0
    block = memoryview(bytes(spec.geometry.full_block_bytes))
    stored = [*keys[:5], *keys[6:]]
    await connection.store.write(stored, [block] * len(stored), deadline_s=60)
    assert await estimate.hit_blocks(keys, prompt_tokens) == 5
    await connection.store.write(keys[5:6], [block], deadline_s=60)
    assert await estimate.hit_blocks(keys, prompt_tokens) == 7
    for shard in running:
        await shard.close()
    assert await estimate.hit_blocks(keys, prompt_tokens) == 0
