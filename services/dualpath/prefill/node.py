"""The prefill node: takes assignments, loads its share, drives its engines, hands over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import get_args

from dualpath.blocks import Phase
from dualpath.blocks.keys import pack_tokens
from dualpath.bus.errors import BusError
from dualpath.bus.nats_bus import Bus
from dualpath.calibration.profile import QUOTA_S, Profile
from dualpath.memory.admission import ring_depth
from dualpath.memory.hbm import Budget
from dualpath.model.api import Backend, ModelError
from dualpath.model.spec import ModelSpec
from dualpath.node.attempts import AttemptTable
from dualpath.node.ids import NoTokenIds, fetch_history, fetch_ids
from dualpath.node.node import Node
from dualpath.node.reading import Share
from dualpath.node.sender import publish_tokens
from dualpath.policy.registry import batch_policy
from dualpath.prefill.engine import PrefillEngine, PrefillFailed
from dualpath.prefill.request import PrefillRequest
from dualpath.prefill.row import EngineParts
from dualpath.prefill.scores import ScoresRefused, deliver_scores
from dualpath.settings import Settings
from dualpath.telemetry import tracing
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import TransportError
from dualpath.wire import control, data
from dualpath.wire.codec import Message, encode
from dualpath.wire.types import (
    Address,
    Attempt,
    AttemptStats,
    EngineLoad,
    PoolUse,
    ReadPath,
    Role,
    Sampled,
)

log = get_logger(__name__)


class PrefillNode(Node):
    """One SNIC, one PE buffer, one engine per back end."""

    role: Role = "prefill"

    def __init__(
        self,
        settings: Settings,
        spec: ModelSpec,
        backends: Sequence[Backend],
        bus: Bus,
        node_id: str,
        profile: Profile | None = None,
    ) -> None:
        super().__init__(
            settings,
            spec,
            backends,
            bus,
            node_id,
            buffer_bytes=settings.prefill_buffer,
            profile=profile,
        )
        self._requests: AttemptTable[PrefillRequest] = AttemptTable(self.crashed)
        self._early: dict[Attempt, data.LoadDone] = {}
        self._paths: dict[ReadPath, int] = dict.fromkeys(get_args(ReadPath), 0)
        self._engines = [
            PrefillEngine(
                EngineParts(
                    backend=backend,
                    endpoint=self.cnic_endpoints[number],
                    arena=self.arena,
                    copies=self.device_copies[number],
                    copier=self.copier,
                    budget=Budget(settings.prefill_hbm),
                    layerwise=settings.use_layerwise,
                    ring_depth=ring_depth(self.geometry, settings),
                    arrival_deadline_s=6 * settings.transfer_deadline_s,
                    steps=self.engine_group.steps(number),
                ),
                batch_policy(
                    settings.use_batching,
                    settings.chunk_tokens,
                    profile.attention if profile else None,
                    QUOTA_S,
                ),
                on_forward=self.observe_forward,
                number=number,
                trace_log=settings.trace_forwards,
            )
            for number, backend in enumerate(backends)
        ]

    def start_engines(self) -> None:
        for engine in self._engines:
            self.own(engine.run())

    async def finish_attempts(self) -> None:
        await self._requests.close()

    # ── messages ───────────────────────────────────────────────────────────────────────────────────
    async def on_control(self, message: Message) -> Message | None:
        match message:
            case control.AssignPrefill():
                if not 0 <= message.engine < len(self._engines):
                    return control.Refused(
                        f"{self.node_id} has no engine {message.engine}", "malformed"
                    )
                if not self._requests.knows(message.attempt):
                    request = PrefillRequest(message, self.geometry)
                    work = self.traced(request.attempt, partial(self._serve, request))
                    self._requests.start(request, work)
                    self.changed.set()
                return control.Ok()
            case control.Abort():
                self._requests.abort(message.attempt)
                self._early.pop(message.attempt, None)
                return control.Ok()
            case control.TokenAcks():
                return None  # the decode node owns the stream
            case _:
                return control.Refused(
                    f"{self.node_id} is a prefill node: {type(message).__name__} is not for it",
                    "malformed",
                )

    async def on_link(self, engine: int, peer: Address, payload: bytes) -> None:
        message = data.link(payload)
        request = self._requests.get(message.attempt)
        match message:
            case data.LoadDone():
                if request is None:
                    self._keep_early(message)
                elif not request.load_done.done():
                    request.load_done.set_result(message)
            case _:
                raise TransportError(f"a prefill node takes no {type(message).__name__}")

    def _keep_early(self, message: data.LoadDone) -> None:
        """The DE may have read its share before the assignment came here; keep a bounded number."""
        if self._requests.knows(message.attempt):
            return
        self._early[message.attempt] = message
        while len(self._early) > 10_000:
            self._early.pop(next(iter(self._early)))

    # ── a request ──────────────────────────────────────────────────────────────────────────────────
    async def _serve(self, request: PrefillRequest) -> None:
        attempt = request.attempt
        early = self._early.pop(attempt, None)
        if early is not None:
            request.load_done.set_result(early)
        lost: tuple[str, str, bool] | None = None
        try:
            async with asyncio.timeout(request.assign.deadline_s):
                await self._load(request)
                await self._prefill(request)
        except* TimeoutError:
            lost = ("deadline", "the request's deadline has passed", False)
        except* (PrefillFailed, ScoresRefused, NoTokenIds, TransportError, BusError) as group:
            lost = ("transfer", str(group.exceptions[0]), True)
        except* ModelError as group:
            lost = ("internal", str(group.exceptions[0]), False)
        finally:
            if lost is not None:
                request.clean = {}
            self._release_slots(request)
            self.changed.set()
        if lost is not None:
            code, reason, retry = lost
            await self.lost(attempt, code, reason, retry=retry)

    def _release_slots(self, request: PrefillRequest) -> None:
        if request.slots:
            self.arena.release(request.slots, request.clean)
            request.slots, request.clean = [], {}

    async def _load(self, request: PrefillRequest) -> None:
        """Read both sides' shares and the miss tokens' ids; fix the hit length."""
        assign, geometry = request.assign, self.geometry
        estimated = assign.hit_blocks * geometry.block_tokens
        async with asyncio.TaskGroup() as group:
            share = group.create_task(self._read_own(request))
            ids = group.create_task(fetch_ids(self.bus, assign, estimated, assign.prompt_tokens))
            history = group.create_task(fetch_history(self.bus, assign, self.grammars))
            if assign.hit_blocks > assign.prefill_blocks:
                group.create_task(self._await_decode_share(request))
        request.prefill_share = share.result()
        request.fix_hit()
        holes = request.hit_tokens
        request.token_ids = [
            *(await fetch_ids(self.bus, assign, holes, estimated)),
            *ids.result(),
        ]
        request.history = history.result()
        log.debug(
            "loaded",
            request_id=request.attempt.request_id,
            hit_tokens=request.hit_tokens,
            miss_tokens=request.new_tokens,
        )

    async def _read_own(self, request: PrefillRequest) -> Share:
        blocks = request.assign.prefill_blocks
        if not blocks:
            return Share()
        keys = request.keys[:blocks]
        _, slots, hot = await self.arena.acquire_for(keys, blocks)
        request.timings_s["acquire"] = request.clock.here_s
        request.slots = slots
        request.clean = {slots[index]: keys[index] for index in sorted(hot)}
        share = await self.read_share(keys, [self.arena.view(slot) for slot in slots], hot)
        request.clean = {slots[index]: keys[index] for index in share.right}
        return share

    async def _await_decode_share(self, request: PrefillRequest) -> None:
        """Raises PrefillFailed where the DE claims what it cannot have read."""
        assign, done = request.assign, await request.load_done
        share = assign.hit_blocks - assign.prefill_blocks
        if not 0 <= done.blocks <= share:
            raise PrefillFailed(
                f"{assign.decode_node} says that it has read {done.blocks} of {share} blocks"
            )
        if not 0 <= done.hot_blocks <= done.blocks:
            raise PrefillFailed(
                f"{assign.decode_node} says that it had {done.hot_blocks} of {done.blocks} blocks"
            )
        request.decode_share = done

    async def _prefill(self, request: PrefillRequest) -> None:
        attempt, assign = request.attempt, request.assign
        request.clock.move(Phase.PREFILL)
        engine = self._engines[assign.engine]
        self.membership.report(attempt, Phase.PREFILL)
        with tracing.span("prefill.compute", new_tokens=request.new_tokens):
            first = await engine.prefill(
                request,
                partial(self._publish, request),
                partial(deliver_scores, self.bus, assign),
            )
        self._release_slots(request)
        await self.membership.reported(attempt)
        request.clock.move(Phase.HANDOFF)
        tail = request.ids(len(request.keys) * self.geometry.block_tokens, assign.prompt_tokens)
        await self.cnic_endpoints[assign.engine].send(
            assign.decode,
            encode(
                data.PrefillDone(
                    attempt, first, request.hit_tokens, pack_tokens(tail), self._stats(request)
                )
            ),
        )
        path: ReadPath = request.assign.read_path if request.hit_blocks else "none"
        self._paths[path] += 1
        self.metrics.hit_tokens.labels(path=path).inc(request.hit_tokens)
        self.metrics.miss_tokens.inc(assign.prompt_tokens - request.hit_tokens)
        self.observe_phases(request.clock.spent_s, Phase.LOADING, Phase.PREFILL)

    async def _publish(self, request: PrefillRequest, first: Sampled) -> None:
        """Once: where the gateway does not get it, the decode node sends it again."""
        request.timings_s["first"] = request.clock.here_s
        assign = request.assign
        event = control.TokenEvent(
            assign.attempt, assign.generated, (first,), stats=self._stats(request)
        )
        await publish_tokens(self.bus, self.node_id, assign.gateway_id, [event])

    def _stats(self, request: PrefillRequest) -> AttemptStats:
        assign, decode, block = request.assign, request.decode_share, self.geometry.block_tokens
        # Behind a hole in this side's share nothing of the other's counts.
        decode_hot = (
            decode.hot_blocks if decode and request.hit_blocks > assign.prefill_blocks else 0
        )
        return AttemptStats(
            prefill_node=self.node_id,
            decode_node=assign.decode_node,
            read_path=assign.read_path if request.hit_blocks else "none",
            hit_tokens=request.hit_tokens,
            prefill_bytes_read=request.prefill_share.bytes_read,
            decode_bytes_read=decode.bytes_read if decode else 0,
            prefill_tokens=request.own_tokens,
            decode_tokens=request.hit_tokens - request.own_tokens,
            prefill_hot_tokens=request.prefill_share.hot_blocks * block,
            decode_hot_tokens=decode_hot * block,
            timings_s={
                "queued": assign.queued_s,
                **{f"wait_{what}": spent for what, spent in assign.waits_s.items()},
                **request.clock.spent_s,
                **request.timings_s,
            },
        )

    # ── what is to be seen ─────────────────────────────────────────────────────────────────────────
    def held(self) -> tuple[Attempt, ...]:
        return self._requests.attempts()

    def engine_loads(self) -> tuple[EngineLoad, ...]:
        return tuple(
            EngineLoad(
                number,
                seq=sum(r.assign.engine == number for r in self._requests),
                tok=sum(
                    r.assign.prompt_tokens for r in self._requests if r.assign.engine == number
                ),
                hbm_free_tokens=engine.parts.budget.free // self.geometry.token_bytes,
            )
            for number, engine in enumerate(self._engines)
        )

    def hbm_tokens(self, engine: int) -> int:
        return self.settings.prefill_hbm // self.geometry.token_bytes

    def pools(self) -> list[PoolUse]:
        budgets = [
            PoolUse(f"prefill_hbm_bytes_{n}", e.parts.budget.used, e.parts.budget.total)
            for n, e in enumerate(self._engines)
        ]
        return [self.arena.pool_use(), *budgets, PoolUse("requests", len(self._requests), 0)]

    def counters(self) -> dict[str, int]:
        return {
            "forwards": sum(e.forwards for e in self._engines),
            "forward_tokens": sum(e.forward_tokens for e in self._engines),
            **{f"path_{path}": count for path, count in self._paths.items()},
        }
