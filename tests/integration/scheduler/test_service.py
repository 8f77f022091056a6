"""The service over a real NATS server; nodes and gateways are small programs that speak the protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.support.nats import NatsServer
from tests.support.wait import until

from dualpath.blocks import Phase
from dualpath.bus import Bus
from dualpath.scheduler import SchedulerService
from dualpath.settings import Settings
from dualpath.wire import control
from dualpath.wire.codec import PROTOCOL_VERSION, Message, encode
from dualpath.wire.types import (
    Address,
    Attempt,
    EngineInfo,
    EngineLoad,
    NodeStatus,
    Role,
    Sampling,
)

SETTINGS = Settings(node_lost_s=1.0, fetch_interval_s=0.05)


class FakeNode:
    """Takes whatever it is given. A decode node has slots at once, a prefill node prefills at once."""

    def __init__(self, bus: Bus, name: str, role: Role, *, then: tuple[Phase, ...] = ()) -> None:
        self.bus, self.name, self.role, self.then = bus, name, role, then
        self.held: list[Attempt] = []
        self.got: list[Message] = []
        self.incarnation = f"{name}-1"
        self.registrations = 0
        self._fetching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.bus.serve(control.node_subject(self.name), control.to_node, self.take)
        self._fetching = asyncio.create_task(self._fetch())

    async def stop(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    async def register(self) -> None:
        engine = EngineInfo(0, Address(self.name, self.incarnation, "127.0.0.1", 1), 4096)
        answer = await self.ask(
            control.RegisterNode(
                self.name, self.incarnation, PROTOCOL_VERSION, self.role, "fp",
                SETTINGS.block_tokens, 4096, 1024, (engine,),
            )
        )  # fmt: skip
        assert isinstance(answer, control.Registered)
        self.registrations += 1

    async def ask(self, message: Message) -> Message:
        return await self.bus.request_until_answered(control.SCHEDULER, message, deadline_s=20)

    async def _fetch(self) -> None:
        await self.register()
        number = 0
        while True:
            number += 1
            load = EngineLoad(0, len(self.held), 0, 4096)
            answer = await self.ask(
                control.Fetch(
                    self.name, self.incarnation, number, (load,), 0, NodeStatus(), tuple(self.held)
                )
            )
            if isinstance(answer, control.Refused):
                await self.register()
            await asyncio.sleep(SETTINGS.fetch_interval_s)

    async def take(self, message: Message) -> Message:
        self.got.append(message)
        match message:
            case control.AssignDecode(attempt=attempt):
                if attempt not in self.held:
                    self.held.append(attempt)
                    await self.ask(control.SlotsReady(attempt, self.name, 7))
            case control.AssignPrefill(attempt=attempt):
                if attempt not in self.held:
                    self.held.append(attempt)
            case control.Abort(attempt=attempt):
                if attempt in self.held:
                    self.held.remove(attempt)
        return control.Ok()

    async def report(self, attempt: Attempt, phase: Phase) -> Message:
        return await self.ask(control.PhaseChange(attempt, self.name, phase.value))


class FakeGateway:
    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.over: list[control.AttemptOver] = []
        self.schedulers: set[str] = set()
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.bus.serve(control.gateway_subject("gw"), control.to_gateway, self.take)
        self._beating = asyncio.create_task(self._beat())
        await until(lambda: self.schedulers)

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            answer = await self.ask(control.RegisterGateway("gw", "1", PROTOCOL_VERSION, "fp"))
            assert isinstance(answer, control.Registered)
            self.schedulers.add(answer.scheduler_incarnation)
            await asyncio.sleep(0.2)

    async def take(self, message: Message) -> Message:
        assert isinstance(message, control.AttemptOver)
        self.over.append(message)
        return control.Ok()

    async def ask(self, message: Message) -> Message:
        return await self.bus.request_until_answered(control.SCHEDULER, message, deadline_s=20)

    async def submit(self, request: str, *, deadline_s: float = 60.0) -> Attempt:
        attempt = Attempt(request, 1)
        answer = await self.ask(
            control.Submit(attempt, "gw", 100, 0, b"root", bytes(16), 1, Sampling(8, 0), deadline_s)
        )
        assert answer == control.Ok()
        return attempt


class Cluster:
    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.buses: list[Bus] = []
        self.nodes: list[FakeNode] = []

    async def bus(self) -> Bus:
        self.buses.append(await self.server.connect())
        return self.buses[-1]

    async def start(self) -> None:
        await self.start_scheduler()
        self.pe = await self.node("prefill-0", "prefill")
        self.de = await self.node("decode-0", "decode")
        self.gateway = FakeGateway(await self.bus())
        await self.gateway.start()
        await until(lambda: self.scheduler.healthy()[0])

    async def start_scheduler(self) -> None:
        self.scheduler_bus = await self.bus()
        self.scheduler = SchedulerService(SETTINGS, self.scheduler_bus)
        await self.scheduler.start()

    async def node(self, name: str, role: Role) -> FakeNode:
        node = FakeNode(await self.bus(), name, role)
        self.nodes.append(node)
        await node.start()
        return node

    def phase(self, attempt: Attempt) -> Phase | None:
        record = self.scheduler.core.book.records.get(attempt)
        return record.phase if record else None

    async def stop(self) -> None:
        await self.gateway.stop()
        for node in self.nodes:
            await node.stop()
        await self.scheduler.close()
        for bus in self.buses:
            await bus.close()


@pytest_asyncio.fixture
async def cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    cluster = Cluster(nats_server)
    await cluster.start()
    yield cluster
    await cluster.stop()


async def loading(cluster: Cluster, request: str) -> Attempt:
    attempt = await cluster.gateway.submit(request)
    await until(lambda: cluster.phase(attempt) is Phase.LOADING)
    return attempt


def kinds(node: FakeNode) -> list[str]:
    return [type(message).__name__ for message in node.got]


async def test_a_request_is_assigned_followed_and_forgotten(cluster: Cluster) -> None:
    attempt = await loading(cluster, "r")
    assert kinds(cluster.de) == ["AssignDecode", "LoadDecode"]
    assert kinds(cluster.pe) == ["AssignPrefill"]
    await cluster.pe.report(attempt, Phase.PREFILL)
    cluster.pe.held.remove(attempt)
    for phase in (Phase.HANDOFF, Phase.DECODE, Phase.DONE):
        assert await cluster.de.report(attempt, phase) == control.Ok()
    status = await cluster.gateway.ask(control.StatusRequest())
    assert isinstance(status, control.ClusterStatus)
    assert (status.queued, status.running) == (0, 0)
    assert status.scheduler.counters["done"] == 1
    text = cluster.scheduler.metrics.render().decode()
    assert 'dualpath_phase_seconds_count{phase="queued"} 1.0' in text
    assert 'dualpath_queue_seconds_count{queue="slots"} 1.0' in text


async def test_many_requests_at_once_are_all_assigned_in_order(cluster: Cluster) -> None:
    attempts = [await cluster.gateway.submit(f"r{i}") for i in range(15)]
    await until(lambda: len(cluster.de.held) == 15)
    assert cluster.de.held == attempts


async def test_cancelling_frees_both_nodes(cluster: Cluster) -> None:
    attempt = await loading(cluster, "r")
    await cluster.gateway.ask(control.CancelRequest(attempt, "gone"))
    await until(lambda: not cluster.de.held and not cluster.pe.held)
    assert cluster.gateway.over == []


async def test_a_node_that_goes_silent_ends_its_attempts(cluster: Cluster) -> None:
    attempt = await loading(cluster, "r")
    await cluster.pe.stop()
    await until(lambda: cluster.gateway.over)
    (over,) = cluster.gateway.over
    assert (over.attempt, over.code, over.retry) == (attempt, "node_lost", True)
    await until(lambda: not cluster.de.held)
    assert not cluster.scheduler.healthy()[0]
    text = cluster.scheduler.metrics.render().decode()
    assert 'dualpath_attempts_lost_total{code="node_lost"} 1.0' in text


async def test_a_node_that_does_not_answer_is_lost_though_it_fetches(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(message: Message) -> Message | None:
        return None

    fresh = await cluster.bus()
    deaf = FakeNode(fresh, "decode-9", "decode")
    monkeypatch.setattr(deaf, "take", silent)
    cluster.nodes.append(deaf)
    await deaf.start()
    await until(lambda: len(cluster.scheduler.core.members.nodes) == 3)
    for i in range(2):
        await cluster.gateway.submit(f"r{i}")
    await until(lambda: cluster.gateway.over)
    assert cluster.gateway.over[0].code == "node_lost"
    await until(lambda: deaf.registrations > 1)


async def test_an_abort_does_not_wait_for_an_assignment_that_hangs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assigned, aborted = asyncio.Event(), asyncio.Event()

    async def hangs(message: Message) -> Message:
        if isinstance(message, control.Abort):
            aborted.set()
        elif not assigned.is_set():
            assigned.set()
            await aborted.wait()
        return control.Ok()

    node = FakeNode(await cluster.bus(), "decode-9", "decode")
    monkeypatch.setattr(node, "take", hangs)
    cluster.nodes.append(node)
    await node.start()
    await until(lambda: len(cluster.scheduler.core.members.nodes) == 3)
    attempts = [await cluster.gateway.submit(f"r{i}") for i in range(2)]
    await assigned.wait()
    for attempt in attempts:
        await cluster.gateway.ask(control.CancelRequest(attempt, "gone"))
    await until(aborted.is_set)
    await until(lambda: not cluster.scheduler.own_status().pools[-1].used)


async def test_a_deadline_passes(cluster: Cluster) -> None:
    attempt = await cluster.gateway.submit("r", deadline_s=0.3)
    await until(lambda: cluster.gateway.over)
    (over,) = cluster.gateway.over
    assert (over.attempt, over.code, over.retry) == (attempt, "deadline", False)
    await until(lambda: not cluster.de.held and not cluster.pe.held)


async def test_nothing_is_lost_when_the_bus_goes_away_and_comes_back(cluster: Cluster) -> None:
    attempt = await loading(cluster, "r")
    await cluster.server.stop()
    await until(lambda: not cluster.scheduler_bus.connected)
    silent_since = asyncio.get_running_loop().time()
    longer = 1.5 * SETTINGS.node_lost_s
    await until(lambda: asyncio.get_running_loop().time() - silent_since > longer)
    await cluster.server.start()
    assert await cluster.pe.report(attempt, Phase.PREFILL) == control.Ok()
    assert cluster.phase(attempt) is Phase.PREFILL
    assert cluster.gateway.over == []


async def test_an_assignment_that_the_bus_lost_is_made_when_it_is_back(cluster: Cluster) -> None:
    await loading(cluster, "before")
    taken = len(cluster.de.got)
    (node,) = (n for n in cluster.scheduler.core.members.nodes.values() if n.role == "decode")
    await cluster.server.stop()
    await until(lambda: not cluster.scheduler_bus.connected)
    assert node.fetch is not None
    attempt = Attempt("r", 1)
    # As if the bus had broken between the answer to the gateway and the assignment.
    submit = control.Submit(attempt, "gw", 100, 0, b"root", bytes(16), 1, Sampling(8, 0), 60.0)
    assert cluster.scheduler.core.handle(submit, time.monotonic()) == control.Ok()
    (assign,) = cluster.scheduler.core.take_actions()
    cluster.scheduler._execute([assign])
    since = time.monotonic()
    await until(lambda: time.monotonic() - since > 1.5 * SETTINGS.node_lost_s)
    assert len(cluster.de.got) == taken
    await cluster.server.start()
    await until(lambda: cluster.phase(attempt) is Phase.LOADING)
    assert cluster.gateway.over == []


async def test_a_scheduler_that_stood_still_loses_nothing(cluster: Cluster) -> None:
    attempt = await loading(cluster, "r")
    beats = len(cluster.gateway.schedulers)
    # The whole process stands still, as under SIGSTOP.
    time.sleep(2.5 * SETTINGS.node_lost_s)  # noqa: ASYNC251
    assert await cluster.pe.report(attempt, Phase.PREFILL) == control.Ok()
    assert cluster.phase(attempt) is Phase.PREFILL
    assert cluster.gateway.over == []
    assert len(cluster.gateway.schedulers) == beats
    assert (cluster.pe.registrations, cluster.de.registrations) == (1, 1)


async def test_an_assignment_too_large_for_the_bus_fails_its_request_and_nobody_else(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await loading(cluster, "running")
    large = Attempt("large", 1)
    submit = control.Submit(large, "gw", 200, 0, b"root", bytes(16 * 12), 1, Sampling(8, 0), 60.0)
    # It fits, and so does AssignDecode; AssignPrefill says more.
    monkeypatch.setattr("dualpath.bus.nats_bus.MAX_MESSAGE_BYTES", len(encode(submit)))
    await cluster.gateway.ask(submit)
    await until(lambda: cluster.gateway.over)
    (over,) = cluster.gateway.over
    assert (over.attempt, over.code, over.retry) == (large, "too_large", False)
    assert cluster.phase(running) is Phase.LOADING
    assert (cluster.pe.registrations, cluster.de.registrations) == (1, 1)


async def test_a_new_scheduler_learns_the_nodes_and_frees_what_it_does_not_know(
    cluster: Cluster,
) -> None:
    await loading(cluster, "r")
    await cluster.scheduler.close()
    await cluster.scheduler_bus.close()
    await cluster.start_scheduler()
    await until(lambda: cluster.pe.registrations == 2 and cluster.de.registrations == 2)
    await until(lambda: not cluster.de.held and not cluster.pe.held)
    await until(lambda: len(cluster.gateway.schedulers) == 2)
    await loading(cluster, "after")


async def test_a_repeated_submission_runs_once(cluster: Cluster) -> None:
    attempt = await loading(cluster, "r")
    assert await cluster.gateway.submit("r") == attempt
    assert kinds(cluster.de).count("AssignDecode") == 1


async def test_closing_leaves_no_task_behind(cluster: Cluster) -> None:
    await cluster.gateway.submit("r")
    await cluster.scheduler.close()
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not names & {"outbox", "scheduler-ticker"}
