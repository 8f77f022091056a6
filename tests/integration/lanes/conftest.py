"""Endpoints, for NICs under real links."""

from __future__ import annotations

from tests.support.transport import make, transport

__all__ = ["make", "transport"]
