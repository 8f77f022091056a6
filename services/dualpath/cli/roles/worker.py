"""Prefill and decode nodes: the only processes that load a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dualpath.bus import Bus
from dualpath.calibration.profile import Profile
from dualpath.calibration.quick import profile_of
from dualpath.cli.seat import Seat, until_stopped
from dualpath.cluster.record import Ready
from dualpath.decode import DecodeNode
from dualpath.memory.admission import check_capacity
from dualpath.model.api import Backend
from dualpath.model.backends import load_backend
from dualpath.model.spec import ModelSpec, load_spec
from dualpath.node.membership import RegistrationRefused
from dualpath.node.node import Node
from dualpath.prefill import PrefillNode
from dualpath.settings import Settings
from dualpath.telemetry.process import ServiceError
from dualpath.wire.types import Role

MakeNode = Callable[[Settings, ModelSpec, Sequence[Backend], Bus, str, Profile], Node]


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
    role: Role = "prefill" if make is PrefillNode else "decode"
    profile = await profile_of(settings, spec, backends[0], role)
    async with seat.bus() as bus:
        node = make(settings, spec, backends, bus, seat.name, profile)
        started = False

        def healthy() -> tuple[bool, str]:
            if not started:
                return False, f"{node.role} node is not registered yet"
            if bus.connected:
                return True, f"{node.role} node serves"
            return False, f"{node.role} node has lost NATS"

        try:
            async with seat.operators_port(node.metrics, healthy) as http_port:
                # Registration waits for a scheduler as long as it takes.
                started = await until_stopped(stop, node.start())
                if started:
                    seat.ready(Ready(http_port))
                    if not await until_stopped(stop, node.wait()):
                        await node.drain()
        except RegistrationRefused as error:
            raise ServiceError(str(error)) from error
        finally:
            await node.close()
