"""Which DE and PE an attempt gets, and who reads which of its hits (paper §5). Pure.

The order of acquisition is built in: an attempt is in the prefill queue only once its DE holds slots for
the whole prompt, so nothing that waits for a DE can wait for something that a PE holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dualpath.blocks import Phase
from dualpath.policy.api import (
    UNLIMITED,
    EngineId,
    PlacementPolicy,
    QueuedRequest,
    ReadPathPolicy,
    ReadSide,
)
from dualpath.scheduler.actions import Send, path_name
from dualpath.scheduler.decisions import Decision, DecisionLog, ReadChoice
from dualpath.scheduler.inflight import InFlight
from dualpath.scheduler.members import Members
from dualpath.scheduler.nodes import Duty, NodeRecord
from dualpath.scheduler.queues import Placed, SideQueue
from dualpath.scheduler.records import WAIT_PREFILL, WAIT_SLOTS, AttemptRecord
from dualpath.wire.control import AssignDecode, AssignPrefill, LoadDecode
from dualpath.wire.types import Attempt

ASSIGN_DECODE, LOAD_DECODE, ASSIGN_PREFILL = "AssignDecode", "LoadDecode", "AssignPrefill"


@dataclass(frozen=True)
class Limits:
    """`assign_s`: a node that does not take an assignment for so long is lost. `prefill_tokens` is the paper's β
    for engines whose nodes do not say theirs: with more tokens to compute than this an engine gets nothing, so that
    requests wait here, where any engine that gets free can take them."""

    prefill_tokens: int
    assign_s: float
    share_s: float = 0.0
    """For so long a request waits for another one that computes its prefix; 0: not at all."""


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
        self.decode_queue = SideQueue("decode", members, decode_policy, UNLIMITED)
        self.prefill_queue = SideQueue("prefill", members, prefill_policy, limits.prefill_tokens)
        self.in_flight = InFlight(members.block_tokens, limits.share_s)
        self.decisions = DecisionLog()
        self._wait_slots: set[Attempt] = set()
        self._slots_ready = 0
        self._members, self._limits = members, limits
        self._read_path = read_path

    def __len__(self) -> int:
        """Attempts that wait: for one that computes their prefix, for a DE, for its slots, for a PE."""
        engines = len(self.decode_queue) + len(self._wait_slots) + len(self.prefill_queue)
        return len(self.in_flight) + engines

    def enter(self, record: AttemptRecord, now: float) -> None:
        """A new attempt waits for a DE, or until another one has computed what both begin with (design: one
        computation for requests that share a prefix in flight)."""
        shared = self.in_flight.join(record, now)
        if shared is None:
            self.decode_queue.add(record, record.queued())
            return
        self.decisions.add(
            Decision(
                "prefix",
                record.queued(),
                now,
                waiting=len(self.in_flight),
                rule=f"shares {shared.blocks} blocks that are being computed",
                leader=str(shared.leader),
                blocks=shared.blocks,
            )
        )

    def prompt_stored(self, record: AttemptRecord, blocks: int, now: float) -> None:
        """The first `blocks` blocks of its prompt are readable from storage."""
        for follower in self.in_flight.stored(record, blocks, now):
            self.enter(follower, now)

    def slots_ready(self, record: AttemptRecord, region_key: int, now: float) -> None:
        """Its DE holds slots for the whole prompt: now, not before, it waits for a PE, where the order is that of
        the slots."""
        record.region_key = region_key
        self._wait_slots.discard(record.attempt)
        record.wait_for(WAIT_PREFILL, now)
        self._slots_ready += 1
        submit = record.submit
        self.prefill_queue.add(
            record,
            QueuedRequest(
                str(record.attempt),
                submit.prompt_tokens,
                record.new_tokens,
                priority=submit.priority,
                arrival=self._slots_ready,
                arrived_s=record.arrived_s,
            ),
        )

    def leave(self, record: AttemptRecord, now: float) -> None:
        """An attempt is over; who waited for it goes on."""
        self.decode_queue.discard(record)
        self._wait_slots.discard(record.attempt)
        self.prefill_queue.discard(record)
        done = record.phase is Phase.DONE
        for follower in self.in_flight.leave(record, now, done=done):
            self.enter(follower, now)

    def place(self, now: float) -> Iterator[Send]:
        """Give away what can be given now."""
        for record in self.in_flight.due(now):
            self.enter(record, now)
        for placed in self.decode_queue.placements():
            self._log("decode", placed, len(self.decode_queue), now)
            yield self._assign_decode(placed.record, placed.placement.engine, now)
        for placed in self.prefill_queue.placements():
            yield from self._pair(placed, now)

    def _log(
        self,
        kind: Literal["decode", "prefill"],
        placed: Placed,
        waiting: int,
        now: float,
        read: ReadChoice | None = None,
    ) -> None:
        placement = placed.placement
        self.decisions.add(
            Decision(
                kind,
                placed.record.queued(),
                now,
                waiting,
                placement.engine,
                placement.rule,
                placement.threshold,
                placed.views,
                placed.left_out,
                read,
            )
        )

    # ── DE ─────────────────────────────────────────────────────────────────────────────────────────
    def _assign_decode(self, record: AttemptRecord, engine: EngineId, now: float) -> Send:
        submit, node = record.submit, self._members.nodes[engine.node_id]
        record.decode = engine
        self._wait_slots.add(record.attempt)
        record.wait_for(WAIT_SLOTS, now)
        node.give(
            record.attempt,
            Duty(engine.number, submit.prompt_tokens, needed_tokens=record.needed_tokens),
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
    def _pair(self, placed: Placed, now: float) -> Iterator[Send]:
        record, engine = placed.record, placed.placement.engine
        assert record.decode is not None
        assert record.region_key is not None
        pe, de = self._members.nodes[engine.node_id], self._members.nodes[record.decode.node_id]
        sides = _sides(pe, de)
        split = self._read_path.choose(record.hit_blocks, *sides)
        read = ReadChoice(split.path, split.hit_blocks, split.prefill_blocks, *sides)
        self._log("prefill", placed, len(self.prefill_queue), now, read)
        record.prefill, record.split = engine, split
        record.reach(Phase.PAIRED, now)
        record.unanswered = {LOAD_DECODE, ASSIGN_PREFILL}
        block, submit = self._members.block_tokens, record.submit
        pe.give(
            record.attempt,
            Duty(
                engine.number,
                submit.prompt_tokens,
                new_tokens=record.new_tokens,
                read_tokens=split.prefill_blocks * block,
            ),
        )
        de.give_read(record.attempt, (split.hit_blocks - split.prefill_blocks) * block)
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


def _sides(pe: NodeRecord, de: NodeRecord) -> tuple[ReadSide, ReadSide]:
    """Equal rates where a node does not say its own."""
    if pe.snic_tokens_per_s and de.snic_tokens_per_s:
        return (
            ReadSide(pe.read_q, pe.snic_tokens_per_s),
            ReadSide(de.read_q, de.snic_tokens_per_s),
        )
    return ReadSide(pe.read_q), ReadSide(de.read_q)
