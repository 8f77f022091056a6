"""The scheduler as a service: the core's shell around the bus and the clock."""

from __future__ import annotations

import asyncio
import secrets
import time

from msgspec.structs import replace

from dualpath.blocks import Phase
from dualpath.bus import Bus
from dualpath.policy.registry import ordering_policy, placement_policy, read_path_policy
from dualpath.scheduler.actions import Action, Ended, Forget, Note, Send
from dualpath.scheduler.core import SchedulerCore
from dualpath.scheduler.decisions import KEPT, encode
from dualpath.scheduler.desk import Rules
from dualpath.scheduler.outbox import Outbox
from dualpath.settings import Settings
from dualpath.telemetry import tracing
from dualpath.telemetry.logs import get_logger
from dualpath.telemetry.metrics import Metrics
from dualpath.wire.codec import Message
from dualpath.wire.control import (
    SCHEDULER,
    ClusterStatus,
    StatusRequest,
    Submit,
    Why,
    WhyRequest,
    to_scheduler,
)
from dualpath.wire.types import Attempt, NodeStatus, PoolUse

log = get_logger(__name__)

_TICK_S = 0.1

_WHY_BYTES = 256 * 1024
"""Of an answer about decisions; the oldest are left out of a larger one."""


class SchedulerService:
    """`start`, then `wait` for what it cannot survive, then `close`. The bus stays the caller's.

    `fingerprint` is the model that all must serve; None: that of whoever registers first.
    """

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        fingerprint: str | None = None,
        *,
        metrics: Metrics | None = None,
    ) -> None:
        self._bus = bus
        self.metrics = metrics or Metrics("scheduler", "scheduler")
        self.metrics.watch(self.own_status)
        # Until nodes say how fast they are, β is what an engine computes in 5 s (paper §5).
        beta = 4 * settings.chunk_tokens
        ordering = ordering_policy(settings.ordering, beta / 5)
        self.core = SchedulerCore(
            Rules(
                block_tokens=settings.block_tokens,
                prefill_tokens=beta,
                max_queued=settings.max_queued,
                node_lost_s=settings.node_lost_s,
                share_s=settings.prefix_wait_s,
            ),
            secrets.token_hex(8),
            decode_policy=placement_policy(settings.use_placement, "decode", ordering),
            prefill_policy=placement_policy(settings.use_placement, "prefill", ordering),
            read_path=read_path_policy(settings.use_read_path, settings.block_tokens),
            fingerprint=fingerprint,
            now=time.monotonic(),
        )
        self._outbox = Outbox(bus, self._answered, self._undeliverable)
        self._spans: dict[Attempt, tracing.Span] = {}
        self._ticker: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Take registrations, fetches and submissions from now on."""
        await self._bus.serve(SCHEDULER, to_scheduler, self._handle)
        self._ticker = asyncio.create_task(self._tick(), name="scheduler-ticker")
        log.info("scheduler started", incarnation=self.core.incarnation)

    async def wait(self) -> None:
        """Return when closed; raises what the service could not survive."""
        assert self._ticker is not None
        await asyncio.wait({self._ticker})
        if not self._ticker.cancelled():
            self._ticker.result()

    async def close(self) -> None:
        """Stop deciding and sending. Attempts that run go on; a new scheduler learns of them from fetches."""
        self._closed = True
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self._outbox.close()

    def status(self) -> ClusterStatus:
        """The answer to StatusRequest."""
        return replace(self.core.status(time.monotonic()), scheduler=self.own_status())

    def why(self, asked: WhyRequest) -> Why:
        """The answer to WhyRequest."""
        log = self.core.pairing.decisions
        limit = min(max(asked.limit, 0), KEPT)
        found = log.of(asked.request_id) if asked.request_id else log.latest(limit)
        return Why(encode(found[-limit:] if limit else [], _WHY_BYTES), time.monotonic())

    def own_status(self) -> NodeStatus:
        """Queues, live attempts, messages that nobody has answered yet, and how attempts ended."""
        status = self.core.own_status()
        outbox = PoolUse("outbox", len(self._outbox), 0)
        return NodeStatus(pools=(*status.pools, outbox), counters=status.counters)

    def healthy(self) -> tuple[bool, str]:
        """Whether requests can be scheduled, and a sentence."""
        if not self._bus.connected:
            return False, "the NATS server is not reachable"
        if (role := self.core.members.missing_role()) is not None:
            return False, f"no {role} node is registered"
        return True, "requests are scheduled"

    async def _handle(self, message: Message) -> Message | None:
        if self._closed:
            # Whoever asks will ask again, and reach the next scheduler.
            return None
        if isinstance(message, StatusRequest):
            return self.status()
        if isinstance(message, WhyRequest):
            return self.why(message)
        answer = self.core.handle(message, time.monotonic())
        if isinstance(message, Submit) and message.attempt in self.core.book.records:
            self._begin_span(message)
        self._execute(self.core.take_actions())
        return answer

    def _begin_span(self, submit: Submit) -> None:
        if tracing.current() and submit.attempt not in self._spans:
            self._spans[submit.attempt] = tracing.start(
                "scheduler.attempt",
                request_id=submit.attempt.request_id,
                attempt=submit.attempt.number,
                prompt_tokens=submit.prompt_tokens,
            )

    async def _tick(self) -> None:
        while True:
            self.core.tick(time.monotonic(), connected=self._bus.connected)
            self._execute(self.core.take_actions())
            self._show()
            await asyncio.sleep(_TICK_S)

    def _answered(self, send: Send, answer: Message) -> None:
        self.core.answered(send, answer, time.monotonic())
        self._execute(self.core.take_actions())

    def _undeliverable(self, send: Send, reason: str) -> bool:
        again = self.core.undeliverable(send, reason, time.monotonic())
        self._execute(self.core.take_actions())
        return again

    def _execute(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    span = self._spans.get(action.attempt, tracing.OFF)
                    token = tracing.enter(span.traceparent)
                    self._outbox.send(action)
                    tracing.leave(token)
                case Forget():
                    self._outbox.forget(action.peer)
                case Ended():
                    self._tell(action)
                case Note():
                    log.log(_LEVELS[action.level], action.event, **action.fields)

    def _tell(self, ended: Ended) -> None:
        """One wide line about an attempt, its metrics, its span. Later phases are measured by the nodes."""
        if (span := self._spans.pop(ended.attempt, None)) is not None:
            span.set(
                phase=ended.phase.value,
                read_path=ended.read_path,
                **{f"wait_{name}_s": spent for name, spent in ended.waits_s.items()},
            )
            if ended.phase is Phase.FAILED:
                span.fail(f"{ended.code}: {ended.reason}")
            span.end()
        log.info(
            "attempt ended",
            request_id=ended.attempt.request_id,
            attempt=ended.attempt.number,
            phase=ended.phase.value,
            code=ended.code,
            reason=ended.reason,
            decode=ended.decode,
            prefill=ended.prefill,
            read_path=ended.read_path,
            prompt_tokens=ended.prompt_tokens,
            hit_tokens_estimate=ended.hit_tokens_estimate,
            total_s=round(ended.total_s, 6),
            **{f"{name}_s": round(spent, 6) for name, spent in ended.phases_s.items()},
            **{f"wait_{name}_s": round(spent, 6) for name, spent in ended.waits_s.items()},
        )
        for phase in (Phase.QUEUED, Phase.PAIRED):
            if phase.value in ended.phases_s:
                observed = self.metrics.phase_seconds.labels(phase=phase.value)
                observed.observe(ended.phases_s[phase.value])
        for queue, spent in ended.waits_s.items():
            self.metrics.queue_seconds.labels(queue=queue).observe(spent)
        if ended.phase is Phase.FAILED and not ended.by_node:
            self.metrics.attempts_lost.labels(code=ended.code).inc()

    def _show(self) -> None:
        pairing, metrics = self.core.pairing, self.metrics
        queues = {
            "decode": (len(pairing.decode_queue), pairing.decode_queue.tokens),
            "prefill": (len(pairing.prefill_queue), pairing.prefill_queue.tokens),
        }
        for queue, (requests, tokens) in queues.items():
            metrics.queue_requests.labels(queue=queue).set(requests)
            metrics.queue_tokens.labels(queue=queue).set(tokens)
        phases = [record.phase for record in self.core.book.records.values()]
        for phase in Phase:
            metrics.attempts.labels(phase=phase.value).set(phases.count(phase))
        for role in ("prefill", "decode"):
            alive = sum(node.role == role for node in self.core.members.nodes.values())
            metrics.nodes.labels(role=role).set(alive)


_LEVELS = {"info": 20, "warning": 30}
