"""One attempt at one request, as its decode node sees it."""

from __future__ import annotations

import asyncio
import time

from dualpath.blocks import BlockKeys, KVGeometry, Phase, unpack_keys
from dualpath.blocks.keys import unpack_tokens
from dualpath.memory.arena import SlotRegion
from dualpath.model.api import DecodeRow
from dualpath.model.history import History
from dualpath.node.clock import PhaseClock
from dualpath.node.stream import TokenStream
from dualpath.wire.control import AssignDecode, LoadDecode
from dualpath.wire.data import PrefillDone
from dualpath.wire.types import Attempt, FinishReason, Sampled


class DecodeRequest:
    """What is known of the attempt. Changed on the event loop only, by its task and its engine.

    `slots` hold the whole prompt from the grant until HANDOFF; then each slot goes back as soon as its block
    is on the device and, if it is new, stored.
    """

    def __init__(self, assign: AssignDecode, geometry: KVGeometry) -> None:
        loop = asyncio.get_running_loop()
        self.assign = assign
        self.geometry = geometry
        self.keys = unpack_keys(assign.keys)
        self.deadline_s = time.monotonic() + assign.deadline_s
        self.clock = PhaseClock(Phase.QUEUED)
        self.slots: list[int] = []
        self.hot: frozenset[int] = frozenset()
        """Blocks of the prompt that its slots held when they were granted; the PE may have written there since."""
        self.read: tuple[int, ...] = ()
        """Blocks of this side's share that are in their slots and right."""
        self.clean: dict[int, bytes] = {}
        """Which of `slots` hold a block that is right, and its key: known from HANDOFF on, when nobody writes."""
        self.region: SlotRegion | None = None
        self.region_key = 0
        """Opens `region` to the PE; 0 while it is closed."""
        self.load: asyncio.Future[LoadDecode] = loop.create_future()
        self.prefill_done: asyncio.Future[PrefillDone] = loop.create_future()
        self.loading: asyncio.Task[None] | None = None
        self.pushes: set[asyncio.Task[None]] = set()
        """Writes to the PE out of this request's slots."""
        self.stores: list[asyncio.Task[object]] = []
        """Stores of this request's blocks; they own the slots that they read."""
        self.copied = asyncio.Event()
        """The engine no longer reads the prompt's slots."""
        self.sequence: BlockKeys | None = None
        self.history: History | None = None
        self.row: DecodeRow | None = None
        self.stream: TokenStream | None = None
        self.finished: asyncio.Future[FinishReason] = loop.create_future()

    def reach_handoff(self) -> None:
        """Move to HANDOFF through what the prefill side did meanwhile."""
        path = (Phase.PAIRED, Phase.LOADING, Phase.PREFILL, Phase.HANDOFF)
        begun = path.index(self.clock.phase) + 1 if self.clock.phase in path else 0
        for phase in path[begun:]:
            self.clock.move(phase)

    @property
    def attempt(self) -> Attempt:
        return self.assign.attempt

    @property
    def prompt_tokens(self) -> int:
        return self.assign.prompt_tokens

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens so far: what the engine's load counts (paper §5)."""
        generated = len(self.stream.tokens) if self.stream is not None else 0
        return self.prompt_tokens + generated

    def begin_sequence(self, done: PrefillDone) -> BlockKeys:
        """Continue the key chain from the prompt's end."""
        self.sequence = BlockKeys.resume(
            self.assign.root, self.geometry.block_tokens, self.keys, unpack_tokens(done.tail)
        )
        return self.sequence

    def take(self, token: Sampled) -> int:
        """Append a generated token to the stream; the request's count of generated tokens afterwards."""
        assert self.stream is not None
        self.stream.tokens.append(token)
        return self.assign.generated + len(self.stream.tokens)

    def end(self, reason: FinishReason) -> None:
        if not self.finished.done():
            self.finished.set_result(reason)

    def fail(self, error: Exception) -> None:
        """Decoding cannot go on: whoever awaits `finished` gets `error`."""
        if not self.finished.done():
            self.finished.set_exception(error)
