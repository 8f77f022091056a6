"""The fixture `make` (see tests/support/transport.py)."""

from __future__ import annotations

from tests.support.transport import make

__all__ = ["make"]
