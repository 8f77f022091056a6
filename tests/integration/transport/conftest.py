"""Every transport passes the tests of this directory; `make` is in tests/support/transport.py."""

from __future__ import annotations

import pytest
from tests.support.transport import EVERY_TRANSPORT, make

__all__ = ["make"]


@pytest.fixture(params=EVERY_TRANSPORT)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
