from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.unit.scheduler.simulated import BLOCK, SimNode, World

from dualpath.blocks import Phase
from dualpath.wire import control
from dualpath.wire.types import Attempt

_NEXT = {"new": Phase.PREFILL, "prefill": Phase.HANDOFF, "handoff": Phase.DECODE}


class Cluster(RuleBasedStateMachine):
    """Any order of submissions, deliveries, repetitions, losses, cancellations, deaths and pauses."""

    @initialize(
        prefill=st.integers(1, 2),
        decode=st.integers(1, 2),
        engines=st.integers(1, 2),
        placement=st.sampled_from(
            ["adaptive", "adaptive", "least-tokens", "round-robin", "random"]
        ),
        path=st.sampled_from(["split", "adaptive", "halves", "decode", "prefill"]),
        share_s=st.sampled_from([0.0, 4.0]),
    )
    def start(
        self, prefill: int, decode: int, engines: int, placement: str, path: str, share_s: float
    ) -> None:
        self.world = World(placement, path, share_s=share_s)
        # Who shares a prefix in flight lets others go first.
        self.one_queue = (placement != "adaptive" or decode == 1) and not share_s
        self.world.gateway()
        self.lives = 1
        self.requests = 0
        self.attempts: dict[str, int] = {}
        for role, count in (("prefill", prefill), ("decode", decode)):
            for i in range(count):
                self.world.start_node(
                    f"{role}-{i}",
                    "prefill" if role == "prefill" else "decode",
                    engines=engines,
                )
        # Long enough for the scheduler to take silence for an answer.
        self._pass(3.1)

    def _node(self, data: st.DataObject, role: str | None = None) -> SimNode:
        names = sorted(n.name for n in self.world.nodes.values() if role in (None, n.role))
        return self.world.nodes[data.draw(st.sampled_from(names))]

    @rule(
        tokens=st.integers(1, 900),
        hits=st.integers(0, 60),
        deadline_s=st.sampled_from([1000.0, 1000.0, 1000.0, 2.0, 0.0]),
    )
    def submit(self, tokens: int, hits: int, deadline_s: float) -> None:
        self.requests += 1
        name = f"r{self.requests}"
        self.attempts[name] = 1
        answer = self.world.submit(name, tokens, hits, deadline_s=deadline_s)
        assert isinstance(answer, control.Ok)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), tokens=st.integers(1, 900))
    def submit_again_or_the_next_attempt(self, data: st.DataObject, tokens: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.attempts)))
        self.attempts[name] += data.draw(st.integers(0, 1))
        self.world.submit(name, tokens, number=self.attempts[name])

    @precondition(lambda self: self.world.inbox)
    @rule(data=st.data(), answered=st.booleans())
    def deliver(self, data: st.DataObject, answered: bool) -> None:
        self.world.deliver(data.draw(st.sampled_from(self.world.deliverable())), answered=answered)

    @precondition(lambda self: self.world.inbox)
    @rule()
    def deliver_all(self) -> None:
        for send in self.world.deliverable():
            if send in self.world.inbox:
                self.world.deliver(send)

    @rule(data=st.data(), late=st.booleans())
    def fetch(self, data: st.DataObject, late: bool) -> None:
        node = self._node(data)
        if late:
            old = node.fetch()
            self.world.tell(node.fetch())
            self.world.tell(old)
        else:
            self.world.tell(node.fetch())

    @rule(data=st.data())
    def slots_ready(self, data: st.DataObject) -> None:
        node = self._node(data, "decode")
        if node.held:
            attempt = data.draw(st.sampled_from(sorted(node.held, key=str)))
            self.world.slots_ready(node, attempt)

    @rule(data=st.data(), twice=st.booleans())
    def progress(self, data: st.DataObject, twice: bool) -> None:
        """The data plane moves an attempt on; reports may come twice."""
        both = [
            (a, de, pe)
            for de in self.world.nodes.values()
            for pe in self.world.nodes.values()
            for a in set(de.held) & set(pe.held)
            if de.role == "decode" and pe.role == "prefill" and de.held[a].slots
        ]
        alone = [
            (a, de, None)
            for de in self.world.nodes.values()
            for a, held in de.held.items()
            if held.stage in ("handoff", "decode")
        ]
        choices = sorted([*both, *alone], key=lambda item: str(item[0]))
        if not choices:
            return
        attempt, de, pe = data.draw(st.sampled_from(choices))
        for _ in range(1 + twice):
            self._step(attempt, de, pe)

    def _step(self, attempt: Attempt, de: SimNode, pe: SimNode | None) -> None:
        held = de.held.get(attempt)
        if held is None:
            return
        match held.stage:
            case "new" if pe is not None and attempt in pe.held:
                if isinstance(self.world.phase(pe, attempt, Phase.PREFILL), control.Ok):
                    held.stage = "prefill"
            case "prefill" if pe is not None:
                pe.free(attempt)
                held.stage = "handoff"
                self.world.phase(de, attempt, Phase.HANDOFF)
            case "handoff":
                held.stage = "decode"
                self.world.tell(control.PromptStored(attempt, de.name, held.tokens // BLOCK))
                self.world.phase(de, attempt, Phase.DECODE)
            case "decode":
                de.free(attempt)
                self.world.phase(de, attempt, Phase.DONE)

    @rule(data=st.data(), retry=st.booleans())
    def a_node_gives_up(self, data: st.DataObject, retry: bool) -> None:
        node = self._node(data)
        if node.held:
            attempt = data.draw(st.sampled_from(sorted(node.held, key=str)))
            node.free(attempt)
            self.world.tell(
                control.AttemptLost(attempt, node.name, "transfer", "the link broke", retry)
            )

    @rule(data=st.data())
    def a_node_forgets_an_attempt(self, data: st.DataObject) -> None:
        """Which it should not, but the scheduler finds out."""
        node = self._node(data)
        if node.held:
            node.free(data.draw(st.sampled_from(sorted(node.held, key=str))))

    @rule(returns=st.booleans(), rarely=st.integers(0, 9))
    def the_gateway_was_away(self, returns: bool, rarely: int) -> None:
        if rarely:
            return
        for _ in self.world.steps(6.1):
            for node in list(self.world.nodes.values()):
                self.world.tell(node.fetch())
            self.world.tick()
        assert not self.world.core.book.records
        self.world.gateway(incarnation="1" if returns else str(self.world.now))

    @rule(data=st.data(), refused=st.booleans())
    def a_node_does_not_take_an_assignment(self, data: st.DataObject, refused: bool) -> None:
        sends = [send for send in self.world.deliverable() if send.to.kind == "node"]
        if not sends:
            return
        send = data.draw(st.sampled_from(sends))
        if refused:
            self.world.inbox.remove(send)
            answer = control.Refused("no room", code="capacity")
            self.world.core.answered(send, answer, self.world.now)
            self.world.run()
        else:
            self.world.undeliverable(send)
        for node in self.world.nodes.values():
            if node.name not in self.world.core.members.nodes:
                assert isinstance(self.world.tell(node.fetch()), control.Refused)
                self.world.tell(node.registration())
                self.world.tell(node.fetch())

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.attempts)))
        attempt = Attempt(name, self.attempts[name])
        self.world.tell(control.CancelRequest(attempt, "the client is gone"))
        assert attempt not in self.world.core.book.records

    @rule(data=st.data(), silent=st.booleans())
    def a_node_dies_and_another_takes_its_place(self, data: st.DataObject, silent: bool) -> None:
        node = self._node(data)
        self.lives += 1
        fresh = SimNode(node.name, node.role, str(self.lives), node.engines)
        self.world.nodes[node.name] = fresh
        if silent:
            self._pass(3.1, except_for=node.name)
        assert isinstance(self.world.tell(fresh.registration()), control.Registered)
        self.world.tell(fresh.fetch())

    def _gateway_life(self) -> str:
        gateway = self.world.core.members.gateways.get("gw")
        return gateway.info.incarnation if gateway else "1"

    def _pass(self, seconds: float, except_for: str = "") -> None:
        """Everybody else keeps talking while time passes."""
        for _ in self.world.steps(seconds):
            self.world.gateway(incarnation=self._gateway_life())
            for node in list(self.world.nodes.values()):
                if node.name != except_for:
                    self.world.tell(node.fetch())
            self.world.tick()

    @rule(seconds=st.floats(0, 2.5))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    @rule(seconds=st.floats(0, 60))
    def the_bus_is_away(self, seconds: float) -> None:
        nodes = set(self.world.core.members.nodes)
        self.world.tick(connected=False)
        self.world.tick(seconds, connected=False)
        self.world.tick(connected=True)
        assert set(self.world.core.members.nodes) == nodes

    @rule(seconds=st.floats(1.6, 60))
    def the_scheduler_stood_still(self, seconds: float) -> None:
        nodes = set(self.world.core.members.nodes)
        self.world.now += seconds
        self.world.tick()
        assert set(self.world.core.members.nodes) == nodes

    def teardown(self) -> None:
        """Left to itself the cluster finishes everything, and nobody holds anything afterwards."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for _ in range(12 * (len(world.submitted) + 2)):
            self._pass(0.5)
            self.deliver_all()
            for node in list(world.nodes.values()):
                for attempt, held in list(node.held.items()):
                    if node.role == "decode" and not held.slots:
                        world.slots_ready(node, attempt)
            for de in [n for n in world.nodes.values() if n.role == "decode"]:
                for attempt in list(de.held):
                    pes = [n for n in world.nodes.values() if n.role == "prefill"]
                    pe = next((n for n in pes if attempt in n.held), None)
                    if de.held[attempt].load is not None:
                        self._step(attempt, de, pe)
            if not world.core.book.records and not any(n.held for n in world.nodes.values()):
                break
        assert not world.core.book.records
        assert set(world.submitted) == set(world.ended)
        self.deliver_all()
        assert not any(node.held for node in world.nodes.values())
        assert not any(node.duties for node in world.core.members.nodes.values())
        assert all(pool.used == 0 for pool in world.core.own_status().pools)
        self._check_ends()
        self._check_order()

    def _check_ends(self) -> None:
        for attempt, ended in self.world.ended.items():
            if ended.phase is Phase.FAILED or ended.code == "deadline":
                assert attempt in self.world.over, "a gateway waits for ever"
            if ended.phase is Phase.DONE:
                assert attempt not in self.world.over

    def _check_order(self) -> None:
        """FIFO: first attempts reach their DE in order of arrival, and PEs in order of their DEs' slots.

        Groups of DEs have queues of their own: one may go on while another has no room for its head.
        """
        world = self.world
        first = [s.attempt for s in world.sent if isinstance(s.message, control.AssignDecode)]
        only = [a for a in first if a.number == 1]
        if self.one_queue:
            assert only == sorted(only, key=world.submitted.index)
        paired = [s.attempt for s in world.sent if isinstance(s.message, control.AssignPrefill)]
        assert paired == sorted(paired, key=world.ready.index)


Cluster.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestCluster = Cluster.TestCase
