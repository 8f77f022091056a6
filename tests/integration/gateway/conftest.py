from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest
import pytest_asyncio
from tests.integration.gateway.cluster import FakeCluster, silence
from tests.support.nats import NatsServer
from tests.support.wait import until

from dualpath.gateway import GatewayService
from dualpath.model.prepare import prepare_model
from dualpath.model.spec import ModelSpec, load_spec
from dualpath.settings import Settings, SyntheticProfile

MAX_CONTEXT = 4096
MAX_BODY = 256 * 1024


@dataclass
class Harness:
    """A gateway over HTTP, and the fake cluster behind it."""

    gateway: GatewayService
    cluster: FakeCluster
    settings: Settings
    spec: ModelSpec
    url: str
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI

    def in_flight(self) -> int:
        return self.gateway.status().pools[0].used

    async def idle(self) -> None:
        await until(lambda: self.in_flight() == 0, what="no request in flight")


@pytest.fixture(scope="session")
def model_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def gateway_settings(model_home: Path, request: pytest.FixtureRequest) -> Settings:
    """Parametrize it indirectly with a dict of what shall differ."""
    settings = Settings(
        model="synthetic",
        home=model_home,
        synthetic=SyntheticProfile(vocab_size=400, max_context=MAX_CONTEXT),
        max_body=MAX_BODY,
        max_attempts=3,
        secret="test",
        stop_s=2.0,
    )
    return settings.model_copy(update=getattr(request, "param", {}))


@pytest_asyncio.fixture
async def harness(nats_server: NatsServer, gateway_settings: Settings) -> AsyncIterator[Harness]:
    prepare_model(gateway_settings, lambda line: None)
    spec = load_spec(gateway_settings)
    cluster = FakeCluster(await nats_server.connect("fake"), silence)
    await cluster.start()
    bus = await nats_server.connect("gateway")
    gateway = GatewayService(gateway_settings, spec, bus, "gateway-0")
    url = f"http://127.0.0.1:{await gateway.start(0)}"
    async with (
        httpx.AsyncClient(base_url=url, timeout=90) as http,
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=90
        ) as client,
    ):
        yield Harness(gateway, cluster, gateway_settings, spec, url, http, client)
    await gateway.close()
    await bus.close()
    await cluster.close()
