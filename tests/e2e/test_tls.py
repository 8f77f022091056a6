"""A whole cluster whose links are encrypted, with the certificate that `dualpath up` makes."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest
from tests.e2e.conftest import StartCluster
from tests.support.agents import Client, Reply, talk_all
from tests.support.client import spec_of
from tests.support.transport import RawPeer

from dualpath.kvstore.shards import parse_shard
from dualpath.settings import load_settings
from dualpath.transport.handshake import Refusal


def test_agents_get_answers_in_which_each_byte_counts(start_own_cluster: StartCluster) -> None:
    cluster = start_own_cluster(tls=True, read_path="halves", decode=2)
    spec = spec_of(cluster)

    async def talk() -> list[list[Reply]]:
        async with Client(cluster.base_url, cluster.model) as client:
            return await talk_all(client, agents=6, turns=4)

    replies = [reply for talk in asyncio.run(talk()) for reply in talk]
    assert [r.explain for r in replies if r.tokens != r.right_tokens(spec)] == []
    assert {r.explain["attempts"] for r in replies} == {1}
    assert "split" in {r.read_path for r in replies}

    settings = load_settings(cluster.home / "run" / "settings.json")
    shard = parse_shard(settings.shard_addresses[0])
    assert settings.tls_key is not None
    assert settings.tls_key.stat().st_mode & 0o777 == 0o600
    context = ssl.create_default_context(cafile=settings.tls_ca)
    context.set_alpn_protocols(["dualpath-link"])
    with (
        socket.create_connection((shard.host, shard.port)) as sock,
        context.wrap_socket(sock, server_hostname=shard.host) as tls,
    ):
        assert tls.version() == "TLSv1.3"

    async def dial_in_the_clear() -> None:
        await RawPeer.dial(shard, secret=(settings.secret or "").encode())

    with pytest.raises(Refusal, match="storage-0 uses TLS, and who dials it no TLS"):
        asyncio.run(dial_in_the_clear())
    cluster.until_idle()
