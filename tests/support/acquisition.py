"""The order in which a request acquires memory, as one pure model of a cluster.

It is made of the classes that nodes and scheduler use (slot pools, ledgers, budgets, placement, batching);
what takes time in a cluster is an *event* here, and the caller chooses which of the possible ones comes next.
Whatever it chooses, every request ends, and all pools are empty afterwards: see ARCHITECTURE.md, "Order of
acquisition". Tests drive it at random; nothing in a node runs it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dualpath.blocks.lifecycle import TERMINAL, Phase, advance
from dualpath.memory.hbm import Budget, HbmLedger
from dualpath.memory.slots import SlotPool
from dualpath.policy.api import EngineId, EngineView, PlacementPolicy, QueuedRequest, Waiting
from dualpath.policy.batching import TokenBudget
from dualpath.policy.registry import placement_policy


@dataclass(frozen=True)
class Shape:
    """A cluster's memory: one entry per PE (slots, HBM in tokens of the ring), and per DE (slots, of them
    `reserved` for write-back, HBM in tokens)."""

    prefill: tuple[tuple[int, int], ...]
    decode: tuple[tuple[int, int, int], ...]
    block_tokens: int
    chunk_tokens: int
    layerwise: bool = True
    hot: bool = False
    """Slots are given back with their blocks in them, and asked for by block."""


@dataclass(frozen=True)
class Demand:
    """A request: `hits` blocks of its prompt are stored, `share` of them are read on the PE side; `output`
    tokens are to be generated (1 or more)."""

    prompt: int
    hits: int
    share: int
    output: int


class Event(NamedTuple):
    """What can come next. `subject` is an attempt's number for the first three, else a PE's or DE's."""

    kind: Literal["read", "copied", "stored", "forward", "forwarded", "step"]
    subject: int


@dataclass(eq=False)
class _Attempt:
    """`busy` names what the data plane does with its memory: until that has ended nothing is released. A slot
    that is being stored is held until then by the store alone."""

    number: int
    demand: Demand
    phase: Phase = Phase.QUEUED
    prefill: int = -1
    decode: int = -1
    prefill_slots: list[int] = field(default_factory=list)
    decode_slots: list[int] = field(default_factory=list)
    storing: deque[int] = field(default_factory=deque)
    prefill_hbm: int = 0
    computed: int = 0
    generated: int = 0
    busy: Literal["", "read", "forward", "copy"] = ""

    @property
    def over(self) -> bool:
        return self.phase in TERMINAL

    def keys(self, n: int) -> list[bytes]:
        """Of its first blocks: prompts of some lengths begin alike."""
        return [bytes((self.demand.prompt % 3, index)) for index in range(n)]

    def to(self, phase: Phase) -> None:
        self.phase = advance(self.phase, phase)


@dataclass(eq=False)
class _Prefill:
    slots: SlotPool
    hbm: Budget
    ready: list[_Attempt] = field(default_factory=list)
    batch: list[tuple[_Attempt, int]] = field(default_factory=list)


@dataclass(eq=False)
class _Decode:
    slots: SlotPool
    hbm: HbmLedger[int]
    handoff: deque[_Attempt] = field(default_factory=deque)
    resident: list[_Attempt] = field(default_factory=list)


class Cluster:
    """A cluster that acquires and releases, without bytes and without time."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.prefill = [_Prefill(SlotPool(slots), Budget(hbm)) for slots, hbm in shape.prefill]
        self.decode = [
            _Decode(SlotPool(slots, reserved), HbmLedger(hbm))
            for slots, reserved, hbm in shape.decode
        ]
        self._batching = TokenBudget(shape.chunk_tokens)
        self._place_prefill: PlacementPolicy = placement_policy("adaptive", "prefill")
        self._place_decode: PlacementPolicy = placement_policy("adaptive", "decode")
        self._queue: list[_Attempt] = []
        self._live: dict[int, _Attempt] = {}
        self._number = 0
        self.finished = 0
        self.preempted: list[int] = []
        self.not_stored = 0

    # ── from outside ───────────────────────────────────────────────────────────────────────────────
    def submit(self, demand: Demand) -> int:
        """A request arrives; returns the number of its attempt."""
        self._number += 1
        attempt = _Attempt(self._number, demand)
        self._live[attempt.number] = attempt
        self._queue.append(attempt)
        needed = demand.prompt + 1
        self._place_decode.add(
            QueuedRequest(str(attempt.number), demand.prompt, 0, needed, arrival=attempt.number)
        )
        self._settle()
        return attempt.number

    def cancel(self, number: int) -> None:
        """A client leaves, at any time; unknown and ended attempts are left alone."""
        attempt = self._live.get(number)
        if attempt is not None and not attempt.over:
            self._end(attempt, Phase.CANCELLED)
            self._settle()

    @property
    def live(self) -> list[int]:
        """Attempts that hold something or wait for it."""
        return list(self._live)

    def events(self) -> list[Event]:
        """What can come next; never empty while an attempt is live."""
        possible: list[Event] = []
        for attempt in self._live.values():
            if attempt.busy == "read":
                possible.append(Event("read", attempt.number))
            if attempt.busy == "copy":
                possible.append(Event("copied", attempt.number))
            if attempt.storing:
                possible.append(Event("stored", attempt.number))
        for index, pe in enumerate(self.prefill):
            if pe.batch:
                possible.append(Event("forwarded", index))
            elif self._select(pe):
                possible.append(Event("forward", index))
        possible += [Event("step", index) for index, de in enumerate(self.decode) if de.resident]
        return possible

    def happen(self, event: Event) -> None:
        """One of `events()` comes to pass."""
        match event.kind:
            case "read":
                self._read(self._live[event.subject])
            case "copied":
                self._copied(self._live[event.subject])
            case "stored":
                self._stored(self._live[event.subject])
            case "forward":
                self._forward(self.prefill[event.subject])
            case "forwarded":
                self._forwarded(self.prefill[event.subject])
            case "step":
                self._step(self.decode[event.subject])
        self._settle()

    # ── acquiring, in the order of ARCHITECTURE.md ─────────────────────────────────────────────────
    def _settle(self) -> None:
        """Give whoever waits what there is, each pool in the order of its queue."""
        self._promise_decode_hbm()
        for de in self.decode:
            for ticket, slots, _ in de.slots.grants():
                attempt = self._granted(ticket)
                attempt.decode_slots = slots
                self._choose_prefill(attempt)
        for pe in self.prefill:
            for ticket, slots, _ in pe.slots.grants():
                attempt = self._granted(ticket)
                attempt.prefill_slots = slots
                self._load(attempt)
        for de in self.decode:
            while de.handoff and de.hbm.allocate(de.handoff[0].number, de.handoff[0].demand.prompt):
                de.handoff.popleft().busy = "copy"

    def _ask(self, pool: SlotPool, attempt: _Attempt, n: int) -> None:
        pool.enqueue(attempt.number, n, attempt.keys(n) if self._shape.hot else ())

    def _give(self, pool: SlotPool, attempt: _Attempt, slots: list[int]) -> None:
        clean = dict(zip(slots, attempt.keys(len(slots)), strict=True)) if self._shape.hot else None
        pool.release(slots, clean)

    def _granted(self, ticket: object) -> _Attempt:
        assert isinstance(ticket, int)
        return self._live[ticket]

    def _promise_decode_hbm(self) -> None:
        for i, de in enumerate(self.decode):
            engine, name = EngineId(f"de{i}", i), f"de{i}"
            free = de.hbm.free_tokens
            view = EngineView(engine, *self._load_of(decode=i), 0, free, de.hbm.capacity_tokens)
            self._place_decode.update(name, [view])
        for placement in self._place_decode.place():
            attempt = self._live[int(placement.request_id)]
            self._queue.remove(attempt)
            attempt.decode = placement.engine.number
            de = self.decode[attempt.decode]
            de.hbm.promise(attempt.number, attempt.demand.prompt + 1)
            self._ask(de.slots, attempt, -(-attempt.demand.prompt // self._shape.block_tokens))

    def _choose_prefill(self, attempt: _Attempt) -> None:
        for i in range(len(self.prefill)):
            view = EngineView(EngineId(f"pe{i}", i), *self._load_of(prefill=i), 0)
            self._place_prefill.update(f"pe{i}", [view])
        self._place_prefill.add(
            QueuedRequest(str(attempt.number), attempt.demand.prompt, 0, arrival=attempt.number)
        )
        [placement] = self._place_prefill.place()
        attempt.prefill = placement.engine.number
        attempt.to(Phase.PAIRED)
        if attempt.demand.share:
            self._ask(self.prefill[attempt.prefill].slots, attempt, attempt.demand.share)
        else:
            self._load(attempt)

    def _load_of(self, *, prefill: int | None = None, decode: int | None = None) -> tuple[int, int]:
        """(`seq`, `tok`) of a PE or DE."""
        mine = [
            a.demand.prompt + a.generated
            for a in self._live.values()
            if (a.decode == decode if prefill is None else a.prefill == prefill) and not a.over
        ]
        return len(mine), sum(mine)

    def _load(self, attempt: _Attempt) -> None:
        attempt.to(Phase.LOADING)
        attempt.busy = "read"

    def _read(self, attempt: _Attempt) -> None:
        attempt.busy = ""
        if attempt.over:
            self._free(attempt)
            return
        attempt.computed = attempt.demand.hits * self._shape.block_tokens
        attempt.to(Phase.PREFILL)
        self.prefill[attempt.prefill].ready.append(attempt)

    # ── prefill ────────────────────────────────────────────────────────────────────────────────────
    def _select(self, pe: _Prefill) -> list[tuple[_Attempt, int, int]]:
        """What the next forward would take: (attempt, new tokens, HBM)."""
        waiting = [self._cost(attempt) for attempt in pe.ready]
        counts = self._batching.select(waiting, pe.hbm.free)
        return [
            (attempt, n, cost.hbm_fixed + n * cost.hbm_per_token)
            for attempt, cost, n in zip(pe.ready, waiting, counts, strict=False)
        ]

    def _cost(self, attempt: _Attempt) -> Waiting:
        new = attempt.demand.prompt - attempt.computed
        if self._shape.layerwise:
            return Waiting(attempt.computed, new, attempt.computed, 1)
        return Waiting(attempt.computed, new, 0 if attempt.prefill_hbm else attempt.demand.prompt)

    def _forward(self, pe: _Prefill) -> None:
        for attempt, n, hbm in self._select(pe):
            if not pe.hbm.try_take(hbm):
                raise RuntimeError(f"attempt {attempt.number} was batched without HBM for it")
            pe.ready.remove(attempt)
            attempt.prefill_hbm += hbm
            attempt.busy = "forward"
            pe.batch.append((attempt, n))

    def _forwarded(self, pe: _Prefill) -> None:
        batch, pe.batch = pe.batch, []
        unfinished: list[_Attempt] = []
        for attempt, n in batch:
            attempt.busy = ""
            attempt.computed += n
            if attempt.over:
                self._free(attempt)
                continue
            self._give(pe.slots, attempt, attempt.prefill_slots)
            attempt.prefill_slots = []
            if attempt.computed < attempt.demand.prompt:
                unfinished.append(attempt)
                if self._shape.layerwise:
                    self._give_prefill_hbm(attempt)
            else:
                self._give_prefill_hbm(attempt)
                self._hand_over(attempt)
        pe.ready[:0] = unfinished

    def _hand_over(self, attempt: _Attempt) -> None:
        attempt.to(Phase.HANDOFF)
        attempt.generated = 1
        new = slice(attempt.demand.hits, attempt.demand.prompt // self._shape.block_tokens)
        attempt.storing.extend(attempt.decode_slots[new])
        if attempt.generated == attempt.demand.output:
            self._end(attempt, Phase.DONE)
        else:
            self.decode[attempt.decode].handoff.append(attempt)

    # ── decode ─────────────────────────────────────────────────────────────────────────────────────
    def _copied(self, attempt: _Attempt) -> None:
        attempt.busy = ""
        if attempt.over:
            self._free(attempt)
            return
        self._give_decode_slots(attempt)
        attempt.to(Phase.DECODE)
        self.decode[attempt.decode].resident.append(attempt)

    def _step(self, de: _Decode) -> None:
        for attempt in list(de.resident):
            if attempt.over or not self._grow(de, attempt):
                continue
            attempt.generated += 1
            rows = attempt.demand.prompt + attempt.generated - 1
            if rows % self._shape.block_tokens == 0:
                slot = de.slots.take_reserved()
                if slot is None:
                    self.not_stored += 1
                else:
                    attempt.storing.append(slot)
            if attempt.generated == attempt.demand.output:
                self._end(attempt, Phase.DONE)

    def _grow(self, de: _Decode, attempt: _Attempt) -> bool:
        """Room for one more row; False where it went itself, or a victim's copy has to end first."""
        victims = de.hbm.grow(attempt.number, 1)
        for number in victims:
            self._preempt(self._live[number])
        if not victims:
            return True
        return not attempt.over and not de.hbm.grow(attempt.number, 1)

    def _preempt(self, attempt: _Attempt) -> None:
        if attempt.over:
            return
        self.preempted.append(attempt.number)
        self._end(attempt, Phase.FAILED)
        prompt = attempt.demand.prompt + attempt.generated
        hits = (prompt - 1) // self._shape.block_tokens
        self.submit(Demand(prompt, hits, hits // 2, attempt.demand.output - attempt.generated))

    # ── releasing ──────────────────────────────────────────────────────────────────────────────────
    def _stored(self, attempt: _Attempt) -> None:
        slot = attempt.storing.popleft()
        if slot not in attempt.decode_slots:
            self._give(self.decode[attempt.decode].slots, attempt, [slot])
        self._forget(attempt)

    def _end(self, attempt: _Attempt, phase: Phase) -> None:
        """Leave every queue; what nobody touches is free at once."""
        attempt.to(phase)
        if attempt in self._queue:
            self._queue.remove(attempt)
            self._place_decode.discard(str(attempt.number))
        if attempt.decode >= 0:
            de = self.decode[attempt.decode]
            de.slots.cancel(attempt.number)
            if attempt in de.handoff:
                de.handoff.remove(attempt)
            if attempt in de.resident:
                de.resident.remove(attempt)
        if attempt.prefill >= 0:
            pe = self.prefill[attempt.prefill]
            pe.slots.cancel(attempt.number)
            if attempt in pe.ready:
                pe.ready.remove(attempt)
        self._free(attempt)

    def _free(self, attempt: _Attempt) -> None:
        if attempt.busy:
            return
        if attempt.prefill >= 0:
            self._give(self.prefill[attempt.prefill].slots, attempt, attempt.prefill_slots)
            attempt.prefill_slots = []
            self._give_prefill_hbm(attempt)
        if attempt.decode >= 0:
            self._give_decode_slots(attempt)
            self.decode[attempt.decode].hbm.release(attempt.number)
        self._forget(attempt)

    def _forget(self, attempt: _Attempt) -> None:
        if attempt.over and not attempt.busy and not attempt.storing:
            del self._live[attempt.number]
            self.finished += attempt.phase is not Phase.FAILED

    def _give_prefill_hbm(self, attempt: _Attempt) -> None:
        self.prefill[attempt.prefill].hbm.give(attempt.prefill_hbm)
        attempt.prefill_hbm = 0

    def _give_decode_slots(self, attempt: _Attempt) -> None:
        """All but those whose store has not ended."""
        slots, attempt.decode_slots = attempt.decode_slots, []
        left = [slot for slot in slots if slot not in attempt.storing]
        self._give(self.decode[attempt.decode].slots, attempt, left)
