"""Which DE and PE an attempt gets, and who reads which of its hits (paper §5). Pure.

The order of acquisition is built in: an attempt is in the prefill queue only once its DE holds slots for
the whole prompt, so nothing that waits for a DE can wait for something that a PE holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dualpath.blocks import Phase
from dualpath.policy.api import (
    EngineId,
    EngineView,
    PlacementPolicy,
    QueuedRequest,
    ReadPathPolicy,
)
from dualpath.scheduler.actions import Send, path_name
from dualpath.scheduler.members import Members
from dualpath.scheduler.nodes import Duty, NodeRecord
from dualpath.scheduler.records import (
    WAIT_PREFILL,
    WAIT_SLOTS,
    ArrivalQueue,
    AttemptRecord,
)
from dualpath.wire.control import AssignDecode, AssignPrefill, LoadDecode
from dualpath.wire.types import Attempt

_BATCH = 64
"""Heads that a policy sees at a time, once the first was placed: a long queue whose head waits costs nothing."""

ASSIGN_DECODE, LOAD_DECODE, ASSIGN_PREFILL = "AssignDecode", "LoadDecode", "AssignPrefill"


@dataclass(frozen=True)
class Limits:
    """`assign_s`: a node that does not take an assignment for so long is lost.

    `prefill_tokens` is the paper's β: an engine with more tokens to compute than this gets nothing, so that
    requests wait here, where any engine that gets free can take them. Neither does one whose node has more
    to read into its PE buffer than fits. Two attempts an engine always has: one loads while one computes.
    """

    prefill_tokens: int
    assign_s: float


_ALWAYS = 2


class Pairing:
    """The two queues, and the decisions at their heads."""

    def __init__(
        self,
        members: Members,
        limits: Limits,
        decode_policy: PlacementPolicy,
        prefill_policy: PlacementPolicy,
        read_path: ReadPathPolicy,
    ) -> None:
        self.decode_queue = ArrivalQueue()
        self.prefill_queue: dict[str, AttemptRecord] = {}
        self._wait_slots: set[Attempt] = set()
        self._members, self._limits = members, limits
        self._decode_policy, self._prefill_policy = decode_policy, prefill_policy
        self._read_path = read_path

    def __len__(self) -> int:
        """Attempts that wait: for a DE, for its slots, for a PE."""
        return len(self.decode_queue) + len(self._wait_slots) + len(self.prefill_queue)

    def enter(self, record: AttemptRecord) -> None:
        """A new attempt waits for a DE."""
        self.decode_queue.add(record)

    def slots_ready(self, record: AttemptRecord, region_key: int, now: float) -> None:
        """Its DE holds slots for the whole prompt: now, not before, it waits for a PE."""
        record.region_key = region_key
        self._wait_slots.discard(record.attempt)
        record.wait_for(WAIT_PREFILL, now)
        last = next(reversed(self.prefill_queue.values()), record)
        self.prefill_queue[str(record.attempt)] = record
        if record.submit.priority < last.submit.priority:
            # Sorting keeps the order among equals.
            self.prefill_queue = dict(
                sorted(self.prefill_queue.items(), key=lambda item: item[1].submit.priority)
            )

    def leave(self, record: AttemptRecord) -> None:
        self.decode_queue.discard(record)
        self._wait_slots.discard(record.attempt)
        self.prefill_queue.pop(str(record.attempt), None)

    def place(self, now: float) -> Iterator[Send]:
        """Give away what can be given now."""
        yield from self._place_decode(now)
        yield from self._place_prefill(now)

    # ── DE ─────────────────────────────────────────────────────────────────────────────────────────
    def _place_decode(self, now: float) -> Iterator[Send]:
        count = 1
        while heads := self.decode_queue.head(count):
            views = [view for node in self._members.of("decode") for view in node.views()]
            if not views:
                return
            placed = self._decode_policy.place([record.queued() for record in heads], views)
            for record, placement in zip(heads, placed, strict=False):
                yield self._assign_decode(record, placement.engine, now)
            self.decode_queue.drop_head(len(placed))
            if len(placed) < len(heads):
                return
            count = _BATCH

    def _assign_decode(self, record: AttemptRecord, engine: EngineId, now: float) -> Send:
        submit, node = record.submit, self._members.nodes[engine.node_id]
        record.decode = engine
        self._wait_slots.add(record.attempt)
        record.wait_for(WAIT_SLOTS, now)
        node.duties[record.attempt] = Duty(
            engine.number, submit.prompt_tokens, needed_tokens=record.needed_tokens
        )
        return self._send(
            node,
            record,
            AssignDecode(
                attempt=record.attempt,
                gateway_id=submit.gateway_id,
                engine=engine.number,
                prompt_tokens=submit.prompt_tokens,
                generated=submit.generated,
                root=submit.root,
                keys=submit.keys,
                sampling=submit.sampling,
                deadline_s=record.deadline_at - now,
            ),
        )

    # ── PE and read path ───────────────────────────────────────────────────────────────────────────
    def _place_prefill(self, now: float) -> Iterator[Send]:
        while self.prefill_queue:
            views = list(self._open_engines())
            if not views:
                return
            name, record = next(iter(self.prefill_queue.items()))
            # HBM is the DE's affair: a PE takes the ring of a request when it forms the batch.
            head = QueuedRequest(name, record.submit.prompt_tokens, record.new_tokens, 0)
            placed = self._prefill_policy.place([head], views)
            if not placed:
                return
            del self.prefill_queue[name]
            yield from self._pair(record, placed[0].engine, now)

    def _open_engines(self) -> Iterator[EngineView]:
        for node in self._members.of("prefill"):
            reading = sum(duty.read_tokens for duty in node.duties.values())
            full = reading > node.info.buffer_slots * self._members.block_tokens
            for view in node.views():
                attempts, new_tokens = node.unfinished(view.engine.number)
                busy = full or new_tokens > self._limits.prefill_tokens
                if attempts < _ALWAYS or not busy:
                    # A PE's HBM is not promised here, whatever is free of it at the moment.
                    yield EngineView(view.engine, view.seq, view.tok, view.read_q, hbm_free=0)

    def _pair(self, record: AttemptRecord, engine: EngineId, now: float) -> Iterator[Send]:
        assert record.decode is not None
        assert record.region_key is not None
        pe, de = self._members.nodes[engine.node_id], self._members.nodes[record.decode.node_id]
        split = self._read_path.choose(record.hit_blocks, pe.read_q, de.read_q)
        record.prefill, record.split = engine, split
        record.reach(Phase.PAIRED, now)
        record.unanswered = {LOAD_DECODE, ASSIGN_PREFILL}
        block, submit = self._members.block_tokens, record.submit
        pe.duties[record.attempt] = Duty(
            engine.number,
            submit.prompt_tokens,
            new_tokens=record.new_tokens,
            read_tokens=split.prefill_blocks * block,
        )
        duty = de.duties[record.attempt]
        duty.read_tokens = (split.hit_blocks - split.prefill_blocks) * block
        yield self._send(
            de,
            record,
            LoadDecode(
                attempt=record.attempt,
                prefill=pe.address(engine.number),
                start_block=split.prefill_blocks,
                stop_block=split.hit_blocks,
            ),
        )
        yield self._send(
            pe,
            record,
            AssignPrefill(
                attempt=record.attempt,
                gateway_id=submit.gateway_id,
                engine=engine.number,
                prompt_tokens=submit.prompt_tokens,
                generated=submit.generated,
                sampling=submit.sampling,
                read_path=path_name(split),
                prefill_blocks=split.prefill_blocks,
                hit_blocks=split.hit_blocks,
                root=submit.root,
                keys=submit.keys,
                decode=de.address(record.decode.number),
                decode_node=de.name,
                region_key=record.region_key,
                deadline_s=record.deadline_at - now,
                queued_s=now - record.entered_at,
                waits_s=dict(record.waits_s),
            ),
        )

    def _send(
        self,
        node: NodeRecord,
        record: AttemptRecord,
        message: AssignDecode | LoadDecode | AssignPrefill,
    ) -> Send:
        return Send(node.peer, record.attempt, message, self._limits.assign_s)
