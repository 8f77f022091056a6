"""What holds of operations holds over encrypted links."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
from tests.integration.transport.test_operations import *  # noqa: F403
from tests.support.certificates import Authority
from tests.support.transport import Make, endpoints

from dualpath.transport.tls import Tls

WAYS = [pytest.param("tcp")]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return Authority(tmp_path_factory.mktemp("tls")).tls("node")


@pytest.fixture
async def make(tls: Tls) -> AsyncIterator[Make]:
    async with endpoints() as build:
        yield partial(build, tls=tls)
