"""Every transport passes the tests of this directory; `make` is in tests/support/transport.py."""

from __future__ import annotations

import pytest
from tests.support.transport import EVERY_TRANSPORT, make

__all__ = ["make"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that says `WAYS` is run over those."""
    if "transport" in metafunc.fixturenames:
        ways = getattr(metafunc.module, "WAYS", EVERY_TRANSPORT)
        metafunc.parametrize("transport", ways)
