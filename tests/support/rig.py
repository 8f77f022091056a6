"""A prefill node, a decode node and a storage shard in this process, over a real NATS server and real
sockets; `Rig` itself plays scheduler and gateway, so that a test decides what happens when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.nats import NatsServer
from tests.support.transport import TRANSPORTS

from dualpath.blocks import BlockKeys, pack_keys, root_key
from dualpath.blocks.keys import pack_tokens
from dualpath.bus.nats_bus import Bus
from dualpath.decode.node import DecodeNode
from dualpath.lanes.nic import PacedNic
from dualpath.model.backends import load_backend
from dualpath.model.spec import ModelSpec, load_spec
from dualpath.model.synthetic import SyntheticBackend
from dualpath.model.synthetic_kv import reference_tokens
from dualpath.prefill.node import PrefillNode
from dualpath.settings import Settings
from dualpath.storage.shard import StorageShard
from dualpath.wire import control
from dualpath.wire.codec import Message
from dualpath.wire.types import Attempt, AttemptStats, ReadPath, Sampling

GATEWAY = "gw"


@dataclass
class Run:
    """One attempt as the gateway sees it."""

    attempt: Attempt
    ids: list[int]
    sampling: Sampling
    generated: int = 0
    engine: int = 0
    """Of its prefill node and of its decode node."""
    tokens: list[int] = field(default_factory=list)
    stats: AttemptStats = field(default_factory=AttemptStats)
    finish: str | None = None
    lost: control.AttemptLost | None = None
    losses: list[control.AttemptLost] = field(default_factory=list)
    """Everything that was said of its loss; two nodes' words come in any order."""
    phases: list[str] = field(default_factory=list)
    slots: asyncio.Future[control.SlotsReady] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    prefilling: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Rig:
    def __init__(self, settings: Settings, spec: ModelSpec, bus: Bus) -> None:
        self.settings = settings
        self.spec = spec
        self.geometry = spec.geometry
        self.bus = bus
        self.runs: dict[Attempt, Run] = {}
        self.fetches: dict[str, control.Fetch] = {}
        self.engines: dict[str, control.RegisterNode] = {}
        self.registrations = 0
        self.prefill: PrefillNode
        self.decode: DecodeNode
        self.shard: StorageShard
        self.hears_losses = True
        """Whether the scheduler answers AttemptLost."""
        self.refusal: control.Refused | None = None
        """What the scheduler answers to fetches instead of taking them."""
        self.scored: list[control.PromptScored] = []
        self.scores_refusal: control.Refused | None = None
        """What the gateway answers to log-probabilities of prompts instead of taking them."""
        self.events_to_lose = 0
        """So many of the next messages with tokens are lost on their way."""
        self._numbers = 0

    # ── scheduler ──────────────────────────────────────────────────────────────────────────────────
    async def on_scheduler(self, message: Message) -> Message | None:
        match message:
            case control.RegisterNode():
                self.registrations += 1
                self.engines[message.node_id] = message
                return control.Registered("rig")
            case control.Fetch():
                self.fetches[message.node_id] = message
                return self.refusal or control.Registered("rig")
            case control.SlotsReady():
                run = self.runs[message.attempt]
                if not run.slots.done():
                    run.slots.set_result(message)
            case control.PhaseChange():
                run = self.runs[message.attempt]
                run.phases.append(message.phase)
                if message.phase == "prefill":
                    run.prefilling.set()
            case control.AttemptLost():
                run = self.runs[message.attempt]
                run.lost = run.lost or message
                run.losses.append(message)
                run.over.set()
                if not self.hears_losses:
                    return None
        return control.Ok()

    # ── gateway ────────────────────────────────────────────────────────────────────────────────────
    async def on_gateway(self, message: Message) -> Message | None:
        match message:
            case control.TokenRequest():
                run = self.runs[message.attempt]
                return control.TokenPage(
                    message.start, pack_tokens(run.ids[message.start : message.stop])
                )
            case control.PromptScored():
                assert not self.runs[message.attempt].tokens, "before the first token"
                self.scored.append(message)
                return self.scores_refusal or control.Ok()
            case control.TokenEvents() if self.events_to_lose:
                self.events_to_lose -= 1
            case control.TokenEvents():
                for event in message.events:
                    await self._on_event(message.node_id, event)
        return None

    async def _on_event(self, node_id: str, event: control.TokenEvent) -> None:
        run = self.runs.get(event.attempt)
        if run is None:
            return
        have = run.generated + len(run.tokens)
        if event.index <= have:
            run.tokens += [t.token_id for t in event.tokens[have - event.index :]]
            if event.finish is not None:
                run.finish, run.stats = event.finish, event.stats or run.stats
        ack = control.TokenAck(
            event.attempt, run.generated + len(run.tokens), finished=run.finish is not None
        )
        await self.bus.publish(control.node_subject(node_id), control.TokenAcks((ack,)))
        if run.finish is not None:
            run.over.set()

    # ── what tests do ──────────────────────────────────────────────────────────────────────────────
    def keys(self, ids: Sequence[int]) -> tuple[bytes, bytes]:
        chain = BlockKeys(root_key(self.spec.fingerprint), self.geometry.block_tokens)
        chain.extend(ids)
        return chain.root, pack_keys(chain.keys)

    async def tell(self, node: str, message: Message) -> Message:
        return await self.bus.request(control.node_subject(node), message, timeout_s=30.0)

    async def begin(
        self, ids: Sequence[int], sampling: Sampling, *, generated: int = 0, engine: int = 0
    ) -> Run:
        """Assign the decode side, and wait until it has its slots."""
        self._numbers += 1
        run = Run(Attempt(f"r{self._numbers}", 1), list(ids), sampling, generated, engine=engine)
        self.runs[run.attempt] = run
        root, keys = self.keys(ids)
        assign = control.AssignDecode(
            run.attempt, GATEWAY, engine, len(ids), generated, root, keys, sampling, 60.0
        )
        assert isinstance(await self.tell("d0", assign), control.Ok)
        await asyncio.wait_for(asyncio.shield(run.slots), 60)
        return run

    async def pair(self, run: Run, path: ReadPath, hit_blocks: int, own_blocks: int) -> None:
        """Let the PE read blocks [0, own) and the DE [own, hit)."""
        root, keys = self.keys(run.ids)
        ready = run.slots.result()
        load = control.LoadDecode(
            run.attempt, self.engines["p0"].engines[run.engine].address, own_blocks, hit_blocks
        )
        assert isinstance(await self.tell("d0", load), control.Ok)
        assign = control.AssignPrefill(
            attempt=run.attempt,
            gateway_id=GATEWAY,
            engine=run.engine,
            prompt_tokens=len(run.ids),
            generated=run.generated,
            sampling=run.sampling,
            read_path=path,
            prefill_blocks=own_blocks,
            hit_blocks=hit_blocks,
            root=root,
            keys=keys,
            decode=self.engines["d0"].engines[run.engine].address,
            decode_node="d0",
            region_key=ready.region_key,
            deadline_s=60.0,
        )
        assert isinstance(await self.tell("p0", assign), control.Ok)

    async def generate(
        self,
        ids: Sequence[int],
        n: int,
        path: ReadPath = "none",
        *,
        own_blocks: int | None = None,
        sampling: Sampling | None = None,
        engine: int = 0,
    ) -> Run:
        """A whole request; all full blocks of the prompt count as hits unless `path` is none."""
        run = await self.begin(ids, sampling or Sampling(max_tokens=n, seed=0), engine=engine)
        hits = 0 if path == "none" else self.geometry.max_hit_blocks(len(ids))
        own = {"none": 0, "prefill": hits, "decode": 0, "split": hits // 2}[path]
        await self.pair(run, path, hits, own if own_blocks is None else own_blocks)
        await asyncio.wait_for(run.over.wait(), 60)
        return run

    async def idle(self) -> None:
        """Wait until both nodes have every pool at zero."""
        deadline = asyncio.get_running_loop().time() + 60
        while held := busy(self.prefill) + busy(self.decode):
            if asyncio.get_running_loop().time() > deadline:
                tasks = [task for task in asyncio.all_tasks() if not task.done()]
                for task in tasks:
                    task.print_stack()
                raise AssertionError(f"still held: {held}")
            await asyncio.sleep(0.01)


def prompt(n: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(300, 30_000) for _ in range(n)]


def right(it: Rig, run: Run, n: int) -> list[int]:
    """The first `n` tokens of the right answer, greedy."""
    return reference_tokens(it.spec, run.ids, n, Sampling(max_tokens=n, seed=0))


def busy(node: PrefillNode | DecodeNode) -> list[str]:
    return [
        *(pool.name for pool in node.pools() if pool.used or pool.waiting),
        *(f"attempt {attempt}" for attempt in node.held()),
        *(
            f"device memory of engine {number}"
            for number, backend in enumerate(node.backends)
            if isinstance(backend, SyntheticBackend) and backend.used_bytes
        ),
    ]


@asynccontextmanager
async def rig(
    server: NatsServer,
    home: Path,
    *,
    before_shard: Callable[[int], AbstractAsyncContextManager[int]] | None = None,
    **overrides: Any,
) -> AsyncIterator[Rig]:
    """A started rig; `overrides` are settings. `before_shard` gets the shard's port, and gives the one that
    nodes connect to."""
    given: dict[str, Any] = {
        "model": "synthetic",
        "home": home,
        "secret": "rig",
        "prefill_buffer": 64 << 20,
        "decode_buffer": 64 << 20,
        "write_back_blocks": 16,
        **overrides,
    }
    shard_endpoint = TRANSPORTS[given.get("transport", "tcp")](
        "storage-0", host="127.0.0.1", nic=PacedNic("storage-0"), secret=b"rig"
    )
    shard = StorageShard("storage-0", home / "store", shard_endpoint)
    await shard.start()
    buses = [await server.connect(name) for name in ("rig", "p0", "d0")]
    between = AsyncExitStack()
    try:
        port = shard.address.port
        if before_shard is not None:
            port = await between.enter_async_context(before_shard(port))
        settings = Settings(**given, shard_addresses=(f"storage-0=127.0.0.1:{port}",))
        spec = load_spec(settings)
        it = Rig(settings, spec, buses[0])
        it.shard = shard
        await buses[0].serve(control.SCHEDULER, control.to_scheduler, it.on_scheduler)
        await buses[0].serve(control.gateway_subject(GATEWAY), control.to_gateway, it.on_gateway)
        engines = range(settings.engines)
        backends = [[load_backend(spec, settings, n) for n in engines] for _ in range(2)]
        it.prefill = PrefillNode(settings, spec, backends[0], buses[1], "p0")
        it.decode = DecodeNode(settings, spec, backends[1], buses[2], "d0")
        await it.prefill.start()
        await it.decode.start()
        try:
            yield it
        finally:
            await it.prefill.close()
            await it.decode.close()
    finally:
        await between.aclose()
        for bus in buses:
            await bus.close()
        await shard.close()
