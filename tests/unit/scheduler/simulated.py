"""A core with simulated nodes and gateways around it, driven by hand: no clock, no bus.

Nodes keep to the protocol; messages between core and nodes arrive when the test says so. `check` holds
what must be true at any moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from dualpath.blocks import Phase
from dualpath.policy.api import EngineId
from dualpath.policy.registry import placement_policy, read_path_policy
from dualpath.scheduler.actions import Ended, Forget, Note, Peer, Send
from dualpath.scheduler.core import SchedulerCore
from dualpath.scheduler.desk import Rules
from dualpath.scheduler.records import WAIT_PREFIX
from dualpath.wire import control
from dualpath.wire.codec import PROTOCOL_VERSION, Message
from dualpath.wire.types import (
    Address,
    Attempt,
    EngineInfo,
    EngineLoad,
    NodeStatus,
    Role,
    Sampling,
)

BLOCK = 16
MAX_CONTEXT = 4096


def keys(prompt: str, tokens: int) -> bytes:
    """Of a prompt's full blocks: prompts of one name begin alike."""
    names = [f"{prompt}/{block}" for block in range(tokens // BLOCK)]
    return b"".join(sha256(name.encode()).digest()[:16] for name in names)


@dataclass
class Held:
    """An attempt at a node. `needed` mirrors the promise that the node counts for it."""

    needed: int
    tokens: int
    engine: int
    slots: bool = False
    load: control.LoadDecode | None = None
    stage: str = "new"


@dataclass
class SimNode:
    name: str
    role: Role
    incarnation: str
    engines: int = 1
    hbm: int = 1024
    buffer_slots: int = 64
    number: int = 0
    read_q: int = 0
    held: dict[Attempt, Held] = field(default_factory=dict)
    gone: set[Attempt] = field(default_factory=set)

    def registration(self) -> control.RegisterNode:
        return control.RegisterNode(
            self.name, self.incarnation, PROTOCOL_VERSION, self.role, "fp", BLOCK, MAX_CONTEXT,
            self.buffer_slots,
            tuple(
                EngineInfo(i, Address(f"{self.name}.{i}", self.incarnation, "127.0.0.1", 1), self.hbm)
                for i in range(self.engines)
            ),
        )  # fmt: skip

    def fetch(self) -> control.Fetch:
        self.number += 1
        loads = []
        for i in range(self.engines):
            mine = [held for held in self.held.values() if held.engine == i]
            free = self.hbm - sum(held.needed for held in mine)
            loads.append(EngineLoad(i, len(mine), sum(held.tokens for held in mine), free))
        return control.Fetch(
            self.name, self.incarnation, self.number, tuple(loads), self.read_q, NodeStatus(),
            tuple(self.held),
        )  # fmt: skip

    def take(self, message: Message) -> Message:
        match message:
            case control.AssignDecode():
                if message.attempt not in self.gone and message.attempt not in self.held:
                    needed = min((-(-message.prompt_tokens // BLOCK) + 1) * BLOCK, self.hbm)
                    self.held[message.attempt] = Held(needed, message.prompt_tokens, message.engine)
            case control.LoadDecode():
                if message.attempt in self.held:
                    self.held[message.attempt].load = message
            case control.AssignPrefill():
                if message.attempt not in self.gone and message.attempt not in self.held:
                    self.held[message.attempt] = Held(0, message.prompt_tokens, message.engine)
            case control.Abort():
                self.free(message.attempt)
        return control.Ok()

    def free(self, attempt: Attempt) -> None:
        self.held.pop(attempt, None)
        self.gone.add(attempt)


class World:
    """`inbox` holds what the core has sent and nobody has received yet, in order per peer and attempt."""

    def __init__(
        self,
        placement: str = "adaptive",
        path: str = "adaptive",
        *,
        prefill_tokens: int = 256,
        max_queued: int = 1000,
        share_s: float = 0.0,
    ) -> None:
        self.now = 100.0
        self.core = SchedulerCore(
            Rules(
                block_tokens=BLOCK,
                prefill_tokens=prefill_tokens,
                max_queued=max_queued,
                node_lost_s=3.0,
                grace_s=5.0,
                share_s=share_s,
            ),
            "scheduler-1",
            decode_policy=placement_policy(placement, "decode"),
            prefill_policy=placement_policy(placement, "prefill"),
            read_path=read_path_policy(path, BLOCK),
            fingerprint=None,
            now=self.now,
        )
        self.nodes: dict[str, SimNode] = {}
        self.inbox: list[Send] = []
        self.sent: list[Send] = []
        self.ended: dict[Attempt, Ended] = {}
        self.over: dict[Attempt, control.AttemptOver] = {}
        self.notes: list[Note] = []
        self.ready: list[Attempt] = []
        self.submitted: list[Attempt] = []

    # ── the shell ──────────────────────────────────────────────────────────────────────────────────
    def tell(self, message: Message) -> Message:
        answer = self.core.handle(message, self.now)
        self.run()
        return answer

    def run(self) -> None:
        for action in self.core.take_actions():
            match action:
                case Send(message=control.AssignDecode(engine=engine), to=to):
                    self.check_promise(EngineId(to.name, engine))
            match action:
                case Send():
                    self.check_send(action)
                    if isinstance(action.message, control.Abort):
                        self._drop(action.to, action.attempt)
                    self.inbox.append(action)
                    self.sent.append(action)
                case Forget():
                    self._drop(action.peer)
                case Ended():
                    assert action.attempt not in self.ended, "ended twice"
                    self.ended[action.attempt] = action
                case Note():
                    self.notes.append(action)
        self.check()

    def _drop(self, peer: Peer, attempt: Attempt | None = None) -> None:
        self.inbox = [
            s for s in self.inbox if s.to != peer or (attempt is not None and s.attempt != attempt)
        ]

    def tick(self, seconds: float = 0.0, *, connected: bool = True) -> None:
        for _ in self.steps(seconds):
            self.core.tick(self.now, connected=connected)
            self.run()

    def steps(self, seconds: float) -> Iterator[None]:
        """Let time pass, in steps short enough to be no standstill of the scheduler; one at least."""
        while True:
            step = min(seconds, 0.9)
            seconds -= step
            self.now += step
            yield
            if seconds <= 0:
                return

    def undeliverable(self, send: Send) -> bool:
        """`send` was not answered for `give_up_s`. Returns whether it is tried for as long again."""
        again = self.core.undeliverable(send, "not answered", self.now)
        if not again and send in self.inbox:
            self.inbox.remove(send)
        self.run()
        return again

    def deliverable(self) -> list[Send]:
        """Heads of all chains: what may arrive next."""
        heads: dict[tuple[Peer, Attempt], Send] = {}
        for send in self.inbox:
            heads.setdefault((send.to, send.attempt), send)
        return list(heads.values())

    def deliver(self, send: Send, *, answered: bool = True) -> None:
        """The peer handles a message; without `answered` its answer is lost and it will come again."""
        answer: Message = control.Ok()
        if send.to.kind == "gateway":
            assert isinstance(send.message, control.AttemptOver)
            self.over[send.attempt] = send.message
        else:
            node = self.nodes.get(send.to.name)
            if node is None or node.incarnation != send.to.incarnation:
                return
            answer = node.take(send.message)
        if answered:
            self.inbox.remove(send)
            self.core.answered(send, answer, self.now)
            self.run()

    def settle(self) -> None:
        """Deliver all, let every node fetch, until nothing moves."""
        while True:
            before = len(self.sent)
            for send in self.deliverable():
                if send in self.inbox:
                    self.deliver(send)
            for node in list(self.nodes.values()):
                self.tell(node.fetch())
            if not self.inbox and len(self.sent) == before:
                return

    # ── what happens ───────────────────────────────────────────────────────────────────────────────
    def gateway(self, name: str = "gw", incarnation: str = "1") -> Message:
        return self.tell(control.RegisterGateway(name, incarnation, PROTOCOL_VERSION, "fp"))

    def start_node(
        self, name: str, role: Role, *, engines: int = 1, buffer_slots: int = 64
    ) -> SimNode:
        node = SimNode(name, role, "1", engines=engines, buffer_slots=buffer_slots)
        self.nodes[name] = node
        assert isinstance(self.tell(node.registration()), control.Registered)
        self.tell(node.fetch())
        return node

    def submit(
        self,
        request: str,
        tokens: int = 100,
        hits: int = 0,
        number: int = 1,
        priority: int = 0,
        prompt: str = "",
        tenant: str = "",
        weight: float = 1.0,
        **fields: float,
    ) -> Message:
        attempt = Attempt(request, number)
        answer = self.tell(
            control.Submit(
                attempt, "gw", tokens, 0, b"root", keys(prompt, tokens), hits,
                Sampling(16, 0), fields.get("deadline_s", 1000.0), priority, tenant, weight,
            )
        )  # fmt: skip
        if isinstance(answer, control.Ok) and attempt not in self.submitted:
            self.submitted.append(attempt)
        return answer

    def slots_ready(self, node: SimNode, attempt: Attempt) -> Message:
        node.held[attempt].slots = True
        if attempt not in self.ready and attempt in self.core.book.records:
            self.ready.append(attempt)
        return self.tell(control.SlotsReady(attempt, node.name, 7))

    def phase(self, node: SimNode, attempt: Attempt, phase: Phase) -> Message:
        return self.tell(control.PhaseChange(attempt, node.name, phase.value))

    # ── what must hold ─────────────────────────────────────────────────────────────────────────────
    def check_send(self, send: Send) -> None:
        kind = type(send.message)
        if kind in (control.AssignDecode, control.LoadDecode, control.AssignPrefill):
            same = [s for s in self.sent if s.attempt == send.attempt and type(s.message) is kind]
            assert not same, f"{kind.__name__} twice"
        if kind in (control.LoadDecode, control.AssignPrefill):
            assert send.attempt in self.ready, "a PE before the DE's slots"

    def check(self) -> None:
        core = self.core
        duties: Counter[Attempt] = Counter()
        for node in core.members.nodes.values():
            for attempt, duty in node.duties.items():
                assert attempt in core.book.records, "a duty of an attempt that is over"
                duties[attempt] += 1
                assert 0 <= duty.engine < len(node.info.engines)
        queued = {r.attempt for r in core.pairing.decode_queue}
        paired = {r.attempt for r in core.pairing.prefill_queue}
        assert not queued & paired
        phases = [record.phase for record in core.book.records.values()]
        assert len(core.pairing) == phases.count(Phase.QUEUED)
        for attempt, record in core.book.records.items():
            assert attempt not in self.ended
            expected = (record.decode is not None) + (
                record.prefill is not None and record.behind(Phase.HANDOFF)
            )
            assert duties[attempt] == expected
            waits_for_prefix = record.waiting_for == WAIT_PREFIX
            assert (attempt in queued) == (record.decode is None and not waits_for_prefix)
            waits_for_pe = record.region_key is not None and record.prefill is None
            assert (attempt in paired) == waits_for_pe
        for attempt in self.submitted:
            assert (attempt in core.book.records) != (attempt in self.ended), (
                "lost, or alive and dead"
            )

    def check_promise(self, engine: EngineId) -> None:
        """Nothing is assigned that does not fit beside what the node reports and what is under way to it."""
        node = self.core.members.nodes[engine.node_id]
        (view,) = (view for view in node.views() if view.engine == engine)
        assert view.hbm_free >= 0, "more HBM promised than there is"
