"""Endpoints, for NICs under real links."""

from __future__ import annotations

from tests.support.transport import make

__all__ = ["make"]
