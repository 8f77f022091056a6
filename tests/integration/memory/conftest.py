"""Regions are the same over every transport; `make` is in tests/support/transport.py."""

from __future__ import annotations

import pytest
from tests.support.transport import make, needs_rdma

__all__ = ["make"]


@pytest.fixture(params=["tcp", pytest.param("rdma", marks=needs_rdma)])
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
