"""A worker node: its NICs, engines' group, arena and store client; what it says of itself.

`PrefillNode` and `DecodeNode` derive from it. One event loop owns a node; all state of its attempts changes
there.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence, Set
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dualpath.blocks import Phase
from dualpath.bus.nats_bus import Bus
from dualpath.calibration.profile import Profile
from dualpath.kvstore.making import make_store
from dualpath.lanes.build import nic_of
from dualpath.lanes.nic import PacedNic
from dualpath.memory.admission import slots_in
from dualpath.memory.arena import Arena
from dualpath.model.api import Backend
from dualpath.model.grammar import Grammars
from dualpath.model.spec import ModelSpec
from dualpath.node.copies import Copier
from dualpath.node.device_copies import device_copies
from dualpath.node.engine_group import DEADLINES, EngineGroup
from dualpath.node.membership import Membership
from dualpath.node.reading import Share, ShareReader
from dualpath.settings import Settings
from dualpath.telemetry import tracing
from dualpath.telemetry.logs import get_logger
from dualpath.telemetry.metrics import Metrics
from dualpath.transport.api import Endpoint
from dualpath.transport.making import make_endpoint
from dualpath.wire import control
from dualpath.wire.codec import PROTOCOL_VERSION, Message
from dualpath.wire.types import (
    Address,
    Attempt,
    EngineInfo,
    EngineLoad,
    NicUse,
    NodeSpeed,
    NodeStatus,
    PoolUse,
    Role,
)

log = get_logger(__name__)


class Node(ABC):
    """The part of a worker that does not depend on its role. Create, `start`, `wait`, `close`."""

    role: Role

    def __init__(
        self,
        settings: Settings,
        spec: ModelSpec,
        backends: Sequence[Backend],
        bus: Bus,
        node_id: str,
        *,
        buffer_bytes: int,
        reserved_slots: int = 0,
        profile: Profile | None = None,
    ) -> None:
        self.profile = profile
        self.settings = settings
        self.spec = spec
        self.geometry = spec.geometry
        self.backends = list(backends)
        self.bus = bus
        self.node_id = node_id
        self.grammars = Grammars(spec.directory or Path(), spec.vocab_size, spec.eos_ids)
        self.metrics = Metrics(self.role, node_id)
        snic_rate, self._cnic_rate = settings.nic_bandwidths
        self.snic = nic_of(settings, f"{node_id}.snic", snic_rate)
        self.snic_endpoint: Endpoint = self._endpoint(self.snic, 0)
        self.cnics = [
            nic_of(settings, f"{node_id}.cnic{i}", self._cnic_rate)
            for i in range(len(self.backends))
        ]
        self.cnic_endpoints: list[Endpoint] = [
            self._endpoint(nic, number) for number, nic in enumerate(self.cnics, 1)
        ]
        self.device_copies = [
            device_copies(settings, *parts)
            for parts in zip(self.backends, self.cnics, self.cnic_endpoints, strict=True)
        ]
        self.engine_group = EngineGroup(
            self.cnic_endpoints, self.backends, DEADLINES * settings.transfer_deadline_s
        )
        block = self.geometry.full_block_bytes
        self.arena = Arena(
            f"{node_id}.buffer",
            block,
            slots_in(buffer_bytes, block),
            reserved_slots,
            hot=settings.hot_tier,
        )
        for endpoint in (self.snic_endpoint, *self.cnic_endpoints):
            endpoint.pin(self.arena.memory, self.arena.shared)
        for backend, endpoint in zip(self.backends, self.cnic_endpoints, strict=True):
            if backend.memory is not None:
                endpoint.pin(backend.memory.view, backend.memory)
        self.store = make_store(
            settings,
            fingerprint=spec.fingerprint,
            block_bytes=block,
            endpoint=self.snic_endpoint,
            nic=self.snic,
        )
        self.reader = ShareReader(
            self.store,
            block_tokens=self.geometry.block_tokens,
            block_bytes=block,
            deadline_s=settings.read_deadline_s,
        )
        self.copier = Copier()
        self.membership = Membership(
            bus, node_id, settings, registration=self._registration, fetch=self._fetch, own=self.own
        )
        self.changed = self.membership.changed
        """Set when the load has changed."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends with the error that the node cannot survive."""
        self._owned: set[asyncio.Task[None]] = set()
        self._closing = False

    def _endpoint(self, nic: PacedNic, number: int) -> Endpoint:
        return make_endpoint(
            self.settings, nic.name, nic, fingerprint=self.spec.fingerprint, number=number
        )

    # ── what a role adds ───────────────────────────────────────────────────────────────────────────
    @abstractmethod
    async def on_control(self, message: Message) -> Message | None:
        """Handle one message of the scheduler or a gateway; must be quick and idempotent."""

    @abstractmethod
    async def on_link(self, engine: int, peer: Address, payload: bytes) -> None:
        """Handle one message that a peer engine sent to engine number `engine`."""

    @abstractmethod
    def engine_loads(self) -> tuple[EngineLoad, ...]: ...

    @abstractmethod
    def held(self) -> tuple[Attempt, ...]:
        """Attempts that the node still works on."""

    @abstractmethod
    def hbm_tokens(self, engine: int) -> int:
        """Capacity of an engine's KV memory, as registered."""

    @abstractmethod
    def pools(self) -> list[PoolUse]: ...

    @abstractmethod
    def counters(self) -> dict[str, int]: ...

    @abstractmethod
    async def finish_attempts(self) -> None:
        """Abort every attempt and wait until each has freed what it held."""

    @abstractmethod
    def start_engines(self) -> None:
        """Start the loops of the engines with `own`."""

    # ── life ───────────────────────────────────────────────────────────────────────────────────────
    async def start(self) -> None:
        """Listen, register, and begin to fetch. Raises RegistrationRefused."""
        await self.snic_endpoint.start(self.store.on_message)
        await self.store.start()
        for number, endpoint in enumerate(self.cnic_endpoints):
            await endpoint.start(self._link_handler(number))
        self.metrics.watch(self.status)
        self.start_engines()
        await self.bus.serve(
            control.node_subject(self.node_id), control.to_node, self._handle_control
        )
        await self.membership.register()
        self.own(self.membership.run())

    async def wait(self) -> None:
        """Wait for what the node cannot survive, and raise it."""
        await asyncio.shield(self.failure)

    def busy(self) -> bool:
        """Whether leaving now would lose anything."""
        return bool(self.held())

    async def drain(self) -> None:
        """Leave the cluster in order: take nothing new, finish what there is, for `drain_s` at most. Then `close`."""
        if not self.bus.connected:
            return
        try:
            async with asyncio.timeout(self.settings.drain_s):
                await self.membership.leave(self.busy)
        except TimeoutError:
            log.warning("not finished in time", node=self.node_id, attempts=len(self.held()))

    async def close(self) -> None:
        """Take no more work, abort what there is, and give everything back."""
        self._closing = True
        await self.finish_attempts()
        for task in self._owned:
            task.cancel()
        await asyncio.gather(*self._owned, return_exceptions=True)
        await self.engine_group.close()
        await self.store.close()
        for endpoint in (*self.cnic_endpoints, self.snic_endpoint):
            await endpoint.close()
        for nic in (*self.cnics, self.snic):
            nic.close()
        self.copier.close()
        for backend in self.backends:
            backend.close()
        self.arena.close()

    def own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task of the node, at most for the node's life; if it fails, so does the node."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._owned_ended)
        self._owned.add(task)
        return task

    def _owned_ended(self, task: asyncio.Task[None]) -> None:
        self._owned.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failure.done():
            self.failure.set_exception(error)

    def _link_handler(self, engine: int) -> Any:
        async def handle(peer: Address, payload: bytes) -> None:
            await self.on_link(engine, peer, payload)

        return handle

    # ── control plane ──────────────────────────────────────────────────────────────────────────────
    async def _handle_control(self, message: Message) -> Message | None:
        if self._closing and not isinstance(message, control.Abort | control.TokenAcks):
            return control.Refused(f"{self.node_id} is stopping", "unavailable")
        return await self.on_control(message)

    def _registration(self) -> control.RegisterNode:
        return control.RegisterNode(
            node_id=self.node_id,
            incarnation=self.snic_endpoint.address.incarnation,
            protocol=PROTOCOL_VERSION,
            role=self.role,
            fingerprint=self.spec.fingerprint,
            block_tokens=self.geometry.block_tokens,
            max_context=self.spec.max_context,
            buffer_slots=self.arena.prompt_slots,
            engines=tuple(
                EngineInfo(number, endpoint.address, self.hbm_tokens(number))
                for number, endpoint in enumerate(self.cnic_endpoints)
            ),
            speed=self.profile.speed if self.profile else NodeSpeed(),
        )

    def _fetch(self, number: int) -> control.Fetch:
        return control.Fetch(
            node_id=self.node_id,
            incarnation=self.snic_endpoint.address.incarnation,
            number=number,
            engines=self.engine_loads(),
            read_q_tokens=self.reader.queue_tokens,
            status=self._brief_status(),
            held=self.held(),
        )

    async def lost(self, attempt: Attempt, code: str, reason: str, *, retry: bool = True) -> None:
        """Tell that this node has given the attempt up."""
        self.metrics.attempts_lost.labels(code=code).inc()
        log.warning(
            "attempt lost",
            request_id=attempt.request_id,
            attempt=attempt.number,
            code=code,
            reason=reason,
        )
        await self.membership.tell(control.AttemptLost(attempt, self.node_id, code, reason, retry))

    def crashed(self, attempt: Attempt, error: BaseException) -> None:
        """An attempt's task ended by an error of ours: say so, and let another attempt try."""
        log.error(
            "attempt crashed", request_id=attempt.request_id, attempt=attempt.number, exc_info=error
        )
        self.own(self.lost(attempt, "internal", f"{type(error).__name__} on {self.node_id}"))

    async def traced(self, attempt: Attempt, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """An attempt's work, in a span of this node's."""
        with tracing.span(
            f"{self.role}.attempt",
            node=self.node_id,
            request_id=attempt.request_id,
            attempt=attempt.number,
        ):
            await work()

    # ── reads ──────────────────────────────────────────────────────────────────────────────────────
    async def read_share(
        self, keys: Sequence[bytes], into: Sequence[memoryview], hot: Set[int] = frozenset()
    ) -> Share:
        """Read this node's share of a request but for the blocks that are `hot`, and count it."""
        self.changed.set()
        try:
            with tracing.span(f"{self.role}.read", wanted_blocks=len(keys)) as span:
                share = await self.reader.read(keys, into, hot)
                span.set(blocks=share.blocks, bytes=share.bytes_read, hot_blocks=share.hot_blocks)
        finally:
            self.changed.set()
        for status in share.statuses:
            self.metrics.blocks_read.labels(status=status.name.lower()).inc()
        self.metrics.hot_blocks.inc(share.hot_blocks)
        return share

    # ── what is to be seen ─────────────────────────────────────────────────────────────────────────
    def observe_phases(self, spent_s: dict[str, float], *phases: Phase) -> None:
        """Count how long an attempt stayed in those of `phases` that it went through here."""
        for phase in phases:
            if phase.value in spent_s:
                self.metrics.phase_seconds.labels(phase=phase.value).observe(spent_s[phase.value])

    def observe_forward(self, tokens: int, seconds: float) -> None:
        """Count one forward pass (of a decode node: a step) of an engine."""
        self.metrics.forward_tokens.labels(stage=self.role).observe(tokens)
        self.metrics.forward_seconds.labels(stage=self.role).observe(seconds)

    def _brief_status(self) -> NodeStatus:
        """For the scheduler, which keeps it for every node: of NICs only what they moved."""
        status = self.status()
        nics = tuple(NicUse(use.nic, use.lane, use.direction, use.nbytes) for use in status.nics)
        return replace(status, nics=nics)

    def status(self) -> NodeStatus:
        return NodeStatus(
            pools=tuple(self.pools()),
            nics=tuple(use for nic in (self.snic, *self.cnics) for use in nic.uses()),
            read_q_tokens=self.reader.queue_tokens,
            counters={**self.counters(), **self.arena.hot_counters(), **self.store.events()},
        )


def now_s() -> float:
    return time.monotonic()
