"""The gateway as a service of a process: its parts, their start and their end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator

import uvicorn

from dualpath.bus import Bus
from dualpath.gateway.admission import Admission
from dualpath.gateway.app import make_app
from dualpath.gateway.connection import Connection
from dualpath.gateway.errors import unavailable
from dualpath.gateway.flights import Flights
from dualpath.gateway.intake import Intake
from dualpath.gateway.prefix import PrefixEstimate, StoreConnection
from dualpath.gateway.registration import Registration
from dualpath.gateway.request_id import RequestIds
from dualpath.gateway.watch import Watch
from dualpath.model.spec import ModelSpec
from dualpath.settings import KeyLimits, Settings
from dualpath.telemetry.logs import get_logger
from dualpath.telemetry.metrics import Metrics
from dualpath.wire.control import gateway_subject, to_gateway
from dualpath.wire.types import NodeStatus, PoolUse

log = get_logger(__name__)

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections: they, and not the server, should be the ones to close."""


class GatewayService:
    """Create, `start`, `close`. The caller owns `bus` and closes it afterwards."""

    def __init__(self, settings: Settings, spec: ModelSpec, bus: Bus, gateway_id: str) -> None:
        """Raises ModelError where the model's tokenizer or template cannot be read."""
        self._settings, self._bus, self._gateway_id = settings, bus, gateway_id
        self._intake = Intake(settings, spec)
        has_store = settings.shard_addresses or settings.store != "shards"
        self._store = StoreConnection(settings, spec, gateway_id) if has_store else None
        prefix = PrefixEstimate(spec.geometry, self._store.store if self._store else None)
        self._flights = Flights(
            bus,
            gateway_id,
            prefix,
            self._register,
            node_lost_s=settings.node_lost_s,
            done_grace_s=settings.done_grace_s,
        )
        self._registration = Registration(
            bus,
            gateway_id,
            spec.fingerprint,
            # The scheduler waits twice as long for gateways. Until then nothing is forgotten, and a machine so
            # busy that a beat is late should not begin all requests anew.
            lost_s=2 * settings.node_lost_s,
            on_forgotten=self._flights.submit_again,
        )
        self._watch = Watch(Metrics("gateway", gateway_id))
        self._watch.metrics.watch(self.status)
        self._admission = Admission(
            settings.max_requests,
            KeyLimits(
                requests=settings.max_requests_per_key,
                tokens_per_minute=settings.tokens_per_minute_per_key,
            ),
            settings.key_limits,
        )
        self._stopping = False
        self._server: _Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, port: int) -> int:
        """Serve HTTP on the settings' host at `port` (0: any free one), and return the port. Does not wait for
        the scheduler: until it answers, requests get 503. Raises OSError where the port is taken, or certificate or
        key cannot be used."""
        config = self._server_config()
        listening = socket.create_server(
            (self._settings.host, port),
            family=socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET,
            backlog=2048,
        )
        listening.setblocking(False)
        bound: int = listening.getsockname()[1]
        try:
            if self._store is not None:
                await self._store.start()
            await self._bus.serve(
                gateway_subject(self._gateway_id), to_gateway, self._flights.handle
            )
        except BaseException:
            listening.close()
            raise
        self._server = _Server(config)
        self._tasks = [
            asyncio.create_task(self._registration.run(), name="registration"),
            asyncio.create_task(self._server.serve([listening]), name="http"),
        ]
        log.info("gateway started", host=self._settings.host, port=bound)
        return bound

    async def wait(self) -> None:
        """Return when the gateway has been closed; raises what it could not survive."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not self._stopping:
                task.result()
                raise RuntimeError(f"the gateway's {task.get_name()} task has ended by itself")

    async def close(self) -> None:
        """Refuse what is new, let what runs go on for a moment, end the rest with an error. Takes less than
        `stop_s`."""
        self._stopping = True
        if self._server is not None:
            registration, http = self._tasks
            self._server.should_exit = True
            await asyncio.wait({http}, timeout=self._settings.stop_s * 0.3)
            self._flights.stop()
            await asyncio.wait({http}, timeout=self._settings.stop_s * 0.4)
            late = [registration, http, *self._server.server_state.tasks]
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._flights.close(self._settings.stop_s * 0.1)
        if self._store is not None:
            await self._store.close()
        self._intake.close()

    async def _register(self) -> None:
        await self._registration.beat()

    def status(self) -> NodeStatus:
        """Requests in flight (back at zero when all clients are served or gone), and counted errors."""
        return NodeStatus(
            pools=(
                PoolUse("gateway_requests", len(self._flights), 0),
                PoolUse("gateway_cancellations", self._flights.cancelling, 0),
                PoolUse("gateway_places", self._admission.used, self._settings.max_requests),
            ),
            counters=dict(self._watch.counters),
        )

    def check_open(self) -> None:
        """Raises ApiError(503) while the gateway stops, or where the scheduler does not take it."""
        if self._stopping:
            raise unavailable("the gateway is stopping; try again", code="stopping")
        if self._registration.refusal is not None:
            raise unavailable(f"the scheduler refuses this gateway: {self._registration.refusal}")

    def healthy(self) -> tuple[bool, str]:
        """Whether requests can be served as far as the gateway sees, and a sentence."""
        if self._stopping:
            return False, "the gateway is stopping"
        if self._registration.refusal is not None:
            return False, f"the scheduler refuses this gateway: {self._registration.refusal}"
        if not self._registration.scheduler_answers():
            return False, "the scheduler does not answer"
        return True, "the gateway takes requests"

    def _server_config(self) -> uvicorn.Config:
        app = make_app(
            self._settings, self._intake, self._flights, self, self._watch, self._admission
        )
        config = uvicorn.Config(
            RequestIds(app),
            ssl_certfile=self._settings.http_certificate,
            ssl_keyfile=self._settings.http_key,
            # OpenSSL would ask the terminal for that of an encrypted key.
            ssl_keyfile_password="none",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(self._settings.stop_s),
        )
        try:
            config.load()
        except OSError as error:
            raise OSError(
                f"http_certificate {self._settings.http_certificate} and http_key {self._settings.http_key} "
                f"cannot be used ({error}); give PEM files of a certificate and of its key, not encrypted"
            ) from error
        return config


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's business."""
        yield
