"""Waiting for a condition instead of for time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], object], *, within_s: float = 30.0, what: str = "") -> None:
    """Return once `condition()` is true; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what or condition}")
        await asyncio.sleep(0.005)


async def until_it(
    asked: Callable[[], Awaitable[object]], *, within_s: float = 30.0, what: str = ""
) -> None:
    """As `until`, for a condition that has to be asked for."""
    deadline = time.monotonic() + within_s
    while not await asked():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what or asked}")
        await asyncio.sleep(0.005)
