"""Prefill and decode nodes: the only processes that load a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dualpath.bus import Bus
from dualpath.cli.seat import Seat
from dualpath.cluster.record import Ready
from dualpath.decode import DecodeNode
from dualpath.memory.admission import check_capacity
from dualpath.model.api import Backend
from dualpath.model.backends import load_backend
from dualpath.model.spec import ModelSpec, load_spec
from dualpath.node.node import Node, RegistrationRefused
from dualpath.prefill import PrefillNode
from dualpath.settings import Settings
from dualpath.telemetry.process import ServiceError

MakeNode = Callable[[Settings, ModelSpec, Sequence[Backend], Bus, str], Node]


async def serve_prefill(seat: Seat, stop: asyncio.Event) -> None:
    await _serve(seat, stop, PrefillNode)


async def serve_decode(seat: Seat, stop: asyncio.Event) -> None:
    await _serve(seat, stop, DecodeNode)


async def _serve(seat: Seat, stop: asyncio.Event, make: MakeNode) -> None:
    settings = seat.settings
    spec = await asyncio.to_thread(load_spec, settings)
    if problems := check_capacity(settings, spec.geometry, spec.max_context):
        raise ServiceError("\n".join(problems))
    backends = [
        await asyncio.to_thread(load_backend, spec, settings, number)
        for number in range(settings.engines)
    ]
    async with seat.bus() as bus:
        node = make(settings, spec, backends, bus, seat.name)
        try:
            started = await _start(node, stop)
        except BaseException as error:
            await node.close()
            if isinstance(error, RegistrationRefused):
                raise ServiceError(str(error)) from error
            raise
        if not started:
            await node.close()
            return

        def healthy() -> tuple[bool, str]:
            if bus.connected:
                return True, f"{node.role} node serves"
            return False, f"{node.role} node has lost NATS"

        async with seat.operators_port(node.metrics, healthy) as http_port:
            seat.ready(Ready(http_port))
            await node.serve(stop)


async def _start(node: Node, stop: asyncio.Event) -> bool:
    """False where `stop` came first: registration waits for a scheduler as long as it takes."""
    starting = asyncio.create_task(node.start())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        return starting.done()
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
