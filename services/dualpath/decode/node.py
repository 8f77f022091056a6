"""The decode node: reserves DE slots, reads its share, pushes layers to the PE, decodes, stores, streams."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from dualpath.blocks import Phase
from dualpath.bus.errors import BusError
from dualpath.bus.nats_bus import Bus
from dualpath.calibration.profile import Profile
from dualpath.decode.engine import DamagedKV, DecodeEngine, Preempted
from dualpath.decode.persist import WriteBack
from dualpath.decode.request import DecodeRequest
from dualpath.memory.arena import SlotRegion
from dualpath.model.api import Backend, ModelError
from dualpath.model.spec import ModelSpec
from dualpath.node.attempts import AttemptTable
from dualpath.node.finish import finish_reason
from dualpath.node.ids import NoTokenIds, fetch_history
from dualpath.node.node import Node, now_s
from dualpath.node.sender import TokenSender
from dualpath.settings import Settings
from dualpath.tasks import finish
from dualpath.telemetry import tracing
from dualpath.transport.api import MessageRefused, TransportError
from dualpath.wire import control, data
from dualpath.wire.codec import Message, encode
from dualpath.wire.types import (
    Address,
    Attempt,
    EngineLoad,
    FinishReason,
    PoolUse,
    Role,
)

_PUSHES = 2
"""Layers of a grant that are on their way at a time: all at once take turns, and the first ends with the last."""


class TransferFailed(Exception):
    """The prefill side's part of the attempt failed; another attempt may succeed."""


class DecodeNode(Node):
    """One SNIC, one DE buffer (with write-back slots), one engine per back end."""

    role: Role = "decode"

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
            buffer_bytes=settings.decode_buffer,
            reserved_slots=settings.write_back_blocks,
            profile=profile,
        )
        self._requests: AttemptTable[DecodeRequest] = AttemptTable(self.crashed)
        self._sender = TokenSender(bus, node_id, node_lost_s=settings.node_lost_s)
        self._streams = self._sender.streams
        self._write_back = WriteBack(
            self.store,
            self.arena,
            self.geometry,
            self.copier,
            self.metrics,
            deadline_s=settings.read_deadline_s,
            on_release=self.changed.set,
        )
        self._engines = [
            DecodeEngine(
                backend,
                self.device_copies[number],
                self.copier,
                self._write_back,
                self.engine_group.steps(number),
                capacity_tokens=self.hbm_tokens(number),
                max_context=spec.max_context,
                on_step=self._sender.send_fresh,
                on_forward=self.observe_forward,
            )
            for number, backend in enumerate(backends)
        ]

    def start_engines(self) -> None:
        for engine in self._engines:
            self.own(engine.run())
        self.own(self._sender.run())

    def busy(self) -> bool:
        """Tokens that a gateway has not taken yet exist here only."""
        return super().busy() or len(self._streams) > 0

    async def finish_attempts(self) -> None:
        await self._requests.close()
        await self._write_back.close()

    # ── messages ───────────────────────────────────────────────────────────────────────────────────
    async def on_control(self, message: Message) -> Message | None:
        match message:
            case control.AssignDecode():
                if not 0 <= message.engine < len(self._engines):
                    return control.Refused(
                        f"{self.node_id} has no engine {message.engine}", "malformed"
                    )
                if not self._requests.knows(message.attempt):
                    self._begin(message)
                return control.Ok()
            case control.LoadDecode():
                request = self._requests.get(message.attempt)
                if request is not None and not request.load.done():
                    request.load.set_result(message)
                # One that has ended meanwhile needs no load any more.
                if self._requests.knows(message.attempt):
                    return control.Ok()
                return control.Refused(f"{message.attempt} is not here", "unknown")
            case control.Abort():
                self._requests.abort(message.attempt)
                self._streams.drop(message.attempt)
                return control.Ok()
            case control.TokenAcks():
                for ack in message.acks:
                    self._streams.acknowledge(ack, now_s())
                    if ack.stop and (request := self._requests.get(ack.attempt)) is not None:
                        request.end("stop")
                return None
            case _:
                return control.Refused(
                    f"{self.node_id} is a decode node: {type(message).__name__} is not for it",
                    "malformed",
                )

    def _begin(self, assign: control.AssignDecode) -> None:
        request = DecodeRequest(assign, self.geometry)
        work = self.traced(request.attempt, partial(self._serve, request))
        self._requests.start(request, work)
        self.changed.set()

    async def on_link(self, engine: int, peer: Address, payload: bytes) -> None:
        message = data.link(payload)
        request = self._requests.get(message.attempt)
        if request is None:
            raise MessageRefused(f"{message.attempt} is not on {self.node_id} (any more)")
        match message:
            case data.Grant():
                self._check_grant(request, message)
                places = iter(message.places)
                for _ in range(min(_PUSHES, len(message.places))):
                    self._start_push(request, self._push(request, peer, message, places))
            case data.PrefillDone():
                if not request.prefill_done.done():
                    request.prefill_done.set_result(message)
            case _:
                raise TransportError(f"a decode node takes no {type(message).__name__}")

    # ── memory for the PE ──────────────────────────────────────────────────────────────────────────
    def _check_grant(self, request: DecodeRequest, grant: data.Grant) -> None:
        if not request.region_key:
            raise MessageRefused(f"{request.attempt} takes no grants (any more)")
        layers, tokens = self.geometry.n_layers, request.prompt_tokens
        numbers = [layer for layer, _ in grant.places]
        if not (
            all(0 <= layer < layers for layer in numbers)
            and len(numbers) <= layers
            and 0 <= grant.start < grant.stop <= tokens
        ):
            raise TransportError(
                f"a grant for layers {numbers}, tokens [{grant.start}, {grant.stop}) of "
                f"{request.attempt}, which has {layers} layers and {tokens} tokens"
            )

    async def _push(
        self,
        request: DecodeRequest,
        peer: Address,
        grant: data.Grant,
        places: Iterator[tuple[int, int]],
    ) -> None:
        """Push one layer after another of those that nobody has begun with."""
        region = request.region
        assert region is not None
        for layer, ring_offset in places:
            await self.cnic_endpoints[request.assign.engine].write(
                peer,
                grant.ring_key,
                ring_offset,
                region.rows(layer, grant.start, grant.stop),
                imm=layer,
            )

    def _start_push(self, request: DecodeRequest, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        request.pushes.add(task)
        task.add_done_callback(request.pushes.discard)
        task.add_done_callback(lambda done: self._part_ended(request, done))

    def _part_ended(self, request: DecodeRequest, task: asyncio.Task[None]) -> None:
        """One failed part fails the whole attempt."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not request.prefill_done.done():
            known = isinstance(error, TransportError | BusError)
            request.prefill_done.set_exception(TransferFailed(str(error)) if known else error)

    # ── a request ──────────────────────────────────────────────────────────────────────────────────
    async def _serve(self, request: DecodeRequest) -> None:
        attempt = request.attempt
        lost: tuple[str, str, bool] | None = None
        try:
            # Here and not before: a task that is aborted before its first step releases nothing.
            self._promise_hbm(request)
            async with asyncio.timeout(request.assign.deadline_s):
                await self._reserve(request)
                await self._decode(request, await request.prefill_done)
        except TimeoutError:
            lost = ("deadline", "the request's deadline has passed", False)
        except Preempted as error:
            lost = ("preempted", str(error), True)
        except (TransferFailed, DamagedKV, NoTokenIds, TransportError, BusError) as error:
            lost = ("transfer", str(error), True)
        except ModelError as error:
            lost = ("internal", str(error), False)
        finally:
            if lost is not None:
                request.clean = {}
            await finish(self._release(request))
            if request.clock.phase is not Phase.DONE:
                self._streams.drop(attempt)
            self.changed.set()
        if lost is not None:
            code, reason, retry = lost
            await self.lost(attempt, code, reason, retry=retry)

    def _promise_hbm(self, request: DecodeRequest) -> None:
        tokens = self.geometry.blocks_for(request.prompt_tokens + 1) * self.geometry.block_tokens
        self._engines[request.assign.engine].ledger.promise(request.attempt, tokens)

    async def _reserve(self, request: DecodeRequest) -> None:
        """DE slots for the whole prompt, opened to the PE; then this side's share is read as told."""
        blocks = self.geometry.blocks_for(request.prompt_tokens)
        with tracing.span("decode.reserve", blocks=blocks):
            _, request.slots, request.hot = await self.arena.acquire_for(request.keys, blocks)
        request.region = SlotRegion(self.arena, request.slots, self.geometry)
        endpoint = self.cnic_endpoints[request.assign.engine]
        request.region_key = endpoint.register(request.region)
        request.loading = asyncio.create_task(self._load(request))
        request.loading.add_done_callback(lambda done: self._part_ended(request, done))
        await self.membership.tell(
            control.SlotsReady(request.attempt, self.node_id, request.region_key)
        )

    async def _load(self, request: DecodeRequest) -> None:
        load = await request.load
        request.clock.move(Phase.PAIRED)
        request.clock.move(Phase.LOADING)
        first, stop = load.start_block, load.stop_block
        if first == stop:
            return
        share = await self.read_share(
            request.keys[first:stop],
            [self.arena.view(slot) for slot in request.slots[first:stop]],
            {index - first for index in request.hot if first <= index < stop},
        )
        request.read = tuple(first + index for index in share.right)
        message = data.LoadDone(request.attempt, share.blocks, share.bytes_read, share.hot_blocks)
        await self.cnic_endpoints[request.assign.engine].send(load.prefill, encode(message))

    async def _decode(self, request: DecodeRequest, done: data.PrefillDone) -> None:
        """All KV is here: HANDOFF, decode, and say `done` when the blocks are stored or grace is over."""
        await finish(self._close_to_peers(request))
        request.reach_handoff()
        self.membership.report(request.attempt, Phase.HANDOFF)
        self._store_prompt(request, done)
        assign, first = request.assign, done.first
        stream = self._streams.open(
            request.attempt,
            assign.gateway_id,
            assign.generated,
            now_s=now_s(),
            expires_s=request.deadline_s,
        )
        request.stream = stream
        stream.stats = done.stats
        generated = request.take(first)
        stream.sent = 1  # by the prefill node; sent again where the gateway did not get it
        reason = finish_reason(
            assign.sampling,
            generated=generated,
            token_id=first.token_id,
            room_tokens=self.spec.max_context - request.prompt_tokens - 1,
        )
        if reason is None:
            with tracing.span("decode.generate"):
                reason = await self._decode_rest(request, done)
        else:
            request.copied.set()
        await self._finish(request, done, reason)

    def _store_prompt(self, request: DecodeRequest, done: data.PrefillDone) -> None:
        """Give the slots of the prompt's new full blocks to the write-back."""
        request.begin_sequence(done)
        first, stop = done.hit_tokens // self.geometry.block_tokens, len(request.keys)
        slots = request.slots
        # What lies behind the hits was computed anew, and what the PE has read came from there.
        request.clean = {slots[i]: request.keys[i] for i in request.read if i < first}
        request.slots = [*slots[:first], *slots[stop:]]
        request.stores.extend(
            self._write_back.prompt_blocks(
                request.keys[first:stop],
                slots[first:stop],
                first,
                request.copied,
                lambda blocks: self._say_stored(request, blocks),
            )
        )

    def _say_stored(self, request: DecodeRequest, blocks: int) -> None:
        """Others may wait at the scheduler for what this prompt begins with."""
        message = control.PromptStored(request.attempt, self.node_id, blocks)
        self.own(self.membership.tell(message))

    async def _decode_rest(self, request: DecodeRequest, done: data.PrefillDone) -> FinishReason:
        engine = self._engines[request.assign.engine]
        request.history = await fetch_history(self.bus, request.assign, self.grammars)
        if request.history is not None:
            request.history.append(done.first.token_id)
        await engine.admit(request, done.first)
        request.copied.set()
        self._release_slots(request)
        request.clock.move(Phase.DECODE)
        self.membership.report(request.attempt, Phase.DECODE)
        reason = await request.finished
        await engine.evict(request)
        return reason

    async def _finish(
        self, request: DecodeRequest, done: data.PrefillDone, reason: FinishReason
    ) -> None:
        stream = request.stream
        assert stream is not None
        self._release_slots(request)
        if request.stores:
            await asyncio.wait(request.stores, timeout=self.settings.done_grace_s)
        request.clock.move(Phase.DONE)
        spent = request.clock.spent_s
        stream.stats = msgspec.structs.replace(
            done.stats,
            timings_s={
                **done.stats.timings_s,
                **{name: spent[name] for name in ("handoff", "decode") if name in spent},
            },
        )
        stream.finish = reason
        await self._sender.send_fresh()
        self.membership.report(request.attempt, Phase.DONE)
        self.metrics.tokens_generated.inc(len(stream.tokens))
        self.observe_phases(spent, Phase.HANDOFF, Phase.DECODE)

    # ── release ────────────────────────────────────────────────────────────────────────────────────
    async def _close_to_peers(self, request: DecodeRequest) -> None:
        """Nobody writes into the slots, and nothing is pushed out of them, when this returns. From its first
        step on no grant is taken: a push that began later would read slots that are somebody else's."""
        key, request.region_key = request.region_key, 0
        if key:
            await self.cnic_endpoints[request.assign.engine].revoke(key)
        if request.loading is not None:
            request.loading.cancel()
            await asyncio.gather(request.loading, return_exceptions=True)
            request.loading = None
        await asyncio.gather(*request.pushes, return_exceptions=True)

    def _release_slots(self, request: DecodeRequest) -> None:
        if request.slots:
            self.arena.release(request.slots, request.clean)
            request.slots, request.clean = [], {}

    async def _release(self, request: DecodeRequest) -> None:
        """Free all that the attempt holds; does nothing for what is free already."""
        for push in request.pushes:
            push.cancel()
        await self._close_to_peers(request)
        engine = self._engines[request.assign.engine]
        await engine.evict(request)
        engine.ledger.withdraw(request.attempt)
        request.copied.set()
        self._release_slots(request)

    # ── what is to be seen ─────────────────────────────────────────────────────────────────────────
    def held(self) -> tuple[Attempt, ...]:
        return self._requests.attempts()

    def engine_loads(self) -> tuple[EngineLoad, ...]:
        return tuple(
            EngineLoad(
                number,
                seq=sum(r.assign.engine == number for r in self._requests),
                tok=sum(r.tokens for r in self._requests if r.assign.engine == number),
                hbm_free_tokens=engine.ledger.free_tokens,
            )
            for number, engine in enumerate(self._engines)
        )

    def hbm_tokens(self, engine: int) -> int:
        geometry = self.geometry
        return self.settings.decode_hbm // geometry.full_block_bytes * geometry.block_tokens

    def pools(self) -> list[PoolUse]:
        ledgers = [
            PoolUse(
                f"decode_hbm_tokens_{n}",
                e.ledger.allocated_tokens + e.ledger.promised_tokens,
                e.ledger.capacity_tokens,
            )
            for n, e in enumerate(self._engines)
        ]
        return [
            self.arena.pool_use(),
            self.arena.reserved_use(),
            *ledgers,
            PoolUse("requests", len(self._requests), 0),
            PoolUse("token_streams", len(self._streams), 0),
        ]

    def counters(self) -> dict[str, int]:
        return {
            "steps": sum(e.steps for e in self._engines),
            "tokens": sum(e.tokens for e in self._engines),
            "blocks_stored": self._write_back.stored,
            "blocks_not_stored": self._write_back.not_stored,
        }
