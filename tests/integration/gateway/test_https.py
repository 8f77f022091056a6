"""The API over TLS."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx
import openai
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from tests.integration.gateway.cluster import FakeCluster, silence
from tests.support.certificates import Authority
from tests.support.nats import NatsServer

from dualpath.gateway import GatewayService
from dualpath.model.prepare import prepare_model
from dualpath.model.spec import load_spec
from dualpath.settings import Settings


async def test_clients_that_know_the_authority_are_served_and_others_are_not(
    nats_server: NatsServer, gateway_settings: Settings, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("gateway")
    settings = gateway_settings.model_copy(
        update={"http_certificate": certificate, "http_key": key}
    )
    prepare_model(settings, lambda line: None)
    bus = await nats_server.connect("gateway")
    cluster = FakeCluster(await nats_server.connect("fake"), silence)
    await cluster.start()
    gateway = GatewayService(settings, load_spec(settings), bus, "gateway-0")
    address = f"127.0.0.1:{await gateway.start(0)}"
    try:
        knows = openai.DefaultAsyncHttpxClient(
            verify=ssl.create_default_context(cafile=authority.file)
        )
        async with openai.AsyncOpenAI(
            base_url=f"https://{address}/v1", api_key="unused", max_retries=0, http_client=knows
        ) as client:
            assert [model.id async for model in client.models.list()]
        async with httpx.AsyncClient() as stranger:
            with pytest.raises(httpx.ConnectError):
                await stranger.get(f"https://{address}/health")
            with pytest.raises(httpx.TransportError):
                await stranger.get(f"http://{address}/health")
    finally:
        await gateway.close()
        await bus.close()


async def test_a_certificate_that_cannot_be_used_is_named_and_no_port_is_taken(
    nats_server: NatsServer, gateway_settings: Settings, tmp_path: Path
) -> None:
    certificate, key = Authority(tmp_path).issue("gateway")
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        load_pem_private_key(key.read_bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
        )
    )
    prepare_model(gateway_settings, lambda line: None)
    bus = await nats_server.connect("gateway")
    for wrong in (tmp_path / "missing.key", certificate, locked):
        settings = gateway_settings.model_copy(
            update={"http_certificate": certificate, "http_key": wrong}
        )
        gateway = GatewayService(settings, load_spec(settings), bus, "gateway-0")
        with pytest.raises(OSError, match=f"http_key {wrong} cannot be used .*; give PEM files"):
            async with asyncio.timeout(30):
                await gateway.start(0)
        await gateway.close()
    await bus.close()


def test_certificate_and_key_belong_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="set both, or neither"):
        Settings(http_key=tmp_path / "a.key")
