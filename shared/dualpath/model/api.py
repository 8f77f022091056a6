"""What a node asks of an engine back end. Two exist: `torch` and `synthetic`.

The node owns requests, buffers and time; a back end owns weights and arithmetic. Calls are coroutines:
a back end computes off the event loop. One forward runs at a time per back end object.

KV layout on the device is rows, token-major: layer i of a request is `[tokens, row_bytes[i]]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from dualpath.blocks import KVGeometry
from dualpath.memory.device import DeviceBuffer, Staging
from dualpath.memory.shared import SharedMemory
from dualpath.model.errors import ModelError as ModelError
from dualpath.model.history import History
from dualpath.transport.collectives import Group
from dualpath.wire.types import Sampled, Sampling, TokenScores


@dataclass(frozen=True)
class LayerView:
    """Rows of one layer of one request: `buffer[offset : offset + tokens · row_bytes]`."""

    buffer: DeviceBuffer
    offset: int


@dataclass(frozen=True)
class PrefillRow:
    """One request's part of a forward: `token_ids` come after `prefix_tokens` whose KV is handed in.

    `sample` is None unless this chunk ends the prompt; `index` is the generated token's number.
    """

    token_ids: Sequence[int]
    prefix_tokens: int
    sample: Sampling | None
    index: int = 0
    parent_key: bytes = b""
    """Key of the last full block at or before `prefix_tokens`; with `block_ids`, all the synthetic engine needs."""
    block_ids: Sequence[int] = ()
    """The ids from that block's end up to `prefix_tokens` (fewer than block_tokens)."""
    history: History | None = None
    """What `sample` asks to be known of the ids before the token."""
    scored_ids: Sequence[int] = ()
    """The ids that come after each of `token_ids` (after the last one of the prompt: none), where their
    log-probabilities are wanted, with `scored_top` alternatives."""
    scored_top: int = 0


class PrefillForward(ABC):
    """One ragged forward of several rows, driven layer by layer from 0 (paper §2, layerwise prefill)."""

    @abstractmethod
    async def layer(self, index: int, kv: Sequence[LayerView]) -> None:
        """Run layer `index`. `kv[r]` holds row r's cached rows [0, prefix); on return its rows
        [prefix, prefix + new) are written, and visible through `wire`. A row whose cached KV never arrived is
        computed all the same (its result is dropped by the caller)."""

    @abstractmethod
    async def score(self) -> list[TokenScores | None]:
        """After the last layer, before `finish`: the log-probabilities of each row's `scored_ids`, None for a row
        without. A back end that has no logits says −∞."""

    @abstractmethod
    async def finish(self) -> list[Sampled | None]:
        """After the last layer: the sampled token of each row that has `sample`."""


@dataclass
class DecodeRow:
    """A resident request. The back end appends one KV row per step and may keep `state` of its own.

    `kv` holds all layers, layer-major: layer i at `capacity · row_starts[i]`, `capacity` rows each; the
    first `tokens` rows are filled. `last_token` has no KV yet: the step computes it.
    """

    kv: DeviceBuffer
    capacity: int
    tokens: int
    last_token: int
    sampling: Sampling
    index: int
    parent_key: bytes = b""
    block_ids: list[int] = field(default_factory=list)
    """Ids since the last full block, without `last_token`."""
    state: object | None = None
    history: History | None = None
    """As in `PrefillRow`; with `last_token`."""


class Backend(ABC):
    """A loaded model on one device. Create with `dualpath.model.backends.load_backend`."""

    geometry: KVGeometry
    grouped: bool = False
    """The model is spread over the engines of a group: each forward has collectives, so all engines run it together,
    those without work with no rows. What fails in one fails the forward with CollectiveError."""

    def join(self, group: Group) -> None:
        """Use `group` for the collectives of the next forwards; it stays the caller's. Before the first forward, and
        again after a collective has failed. Only called where the back end is `grouped`."""
        raise NotImplementedError(f"{type(self).__name__} has no collectives")

    @abstractmethod
    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Device memory; the caller accounts for it. Contents are undefined."""

    @property
    def memory(self) -> SharedMemory | None:
        """Where the windows of its buffers lie, as far as there is room, for processes of this host to read; it stays
        the back end's. None where they lie elsewhere."""
        return None

    def stage(self, nbytes: int) -> Staging | None:
        """Memory through which a NIC makes the copies of all buffers from now on; the caller closes it. None where
        there is nothing to copy: windows are the memory. Called once at most, before any other method."""
        return None

    @abstractmethod
    async def begin_prefill(self, rows: Sequence[PrefillRow]) -> PrefillForward: ...

    @abstractmethod
    async def decode(self, rows: Sequence[DecodeRow]) -> list[Sampled | None]:
        """One step of all rows: computes KV of each `last_token` into row `tokens` of each layer, and returns
        the next tokens: None for a row whose KV is damaged, so that none can be sampled. Does not change `tokens`,
        `last_token`, `index`, `parent_key`, `block_ids`, `history`: the caller does. Rows must have
        `tokens < capacity`."""

    @abstractmethod
    def close(self) -> None: ...
