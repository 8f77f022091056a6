"""What holds under asyncio's own event loop holds under uvloop, which services run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from tests.integration.transport import test_operations
from tests.support.transport import Make, endpoints

OPERATIONS = {
    name.removeprefix("test_"): function
    for name, function in vars(test_operations).items()
    if name.startswith("test_") and inspect.iscoroutinefunction(function)
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_under_uvloop(operation: Callable[[Make], Awaitable[None]], transport: str) -> None:
    async def run() -> None:
        async with endpoints(transport) as make:
            await operation(make)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
