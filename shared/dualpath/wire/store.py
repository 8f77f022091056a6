"""Messages between a node (or gateway) and a storage shard, over the same transport as KV bytes.

A read is answered by one-sided writes of the shard into the client's region, then ReadDone. A write
asks for room (WriteOpen → WriteReady), writes one-sided into it, then says WriteCommit → WriteDone.
`op` is chosen by the client and unique among its open calls. `namespace` is fingerprint and block size.
A call whose peer has died or restarted is noticed by `Ping`, long before its deadline. `trace` is the span that a
call belongs to (`telemetry.tracing`).
"""

from __future__ import annotations

from dualpath.wire.codec import Decoder, Message

FOUND, ABSENT, CORRUPT, FAILED = 0, 1, 2, 3
"""What became of one block of a read: three different kinds of no."""

STORED, EXISTS, NOT_STORED = 0, 1, 2
"""What became of one block of a write; NOT_STORED where the shard has no room or no disk."""

MAX_KEYS = 16_384
"""Keys in one message at most; longer calls are several messages."""

MAX_BLOCK_BYTES = 1 << 28
"""Larger blocks are not stored."""

WRITE_BATCH_BYTES = 1 << 24
"""A shard gives room for so many bytes per WriteOpen, or for one block where that is larger."""


RUN_BYTES = 1 << 22
"""So much may come as one write: each costs both sides as much as copying tens of kilobytes."""

_RUN_BITS = 32


class Namespace(Message, frozen=True):
    fingerprint: str
    block_bytes: int


class Match(Message, frozen=True):
    """Which of these keys are there? With `lease_s` > 0 they stay at least so long."""

    op: int
    namespace: Namespace
    keys: bytes
    lease_s: float = 0.0
    trace: str = ""


class MatchDone(Message, frozen=True):
    """`present[i]` is 1 where key i is stored; `lease` is 0 where none was asked for."""

    op: int
    present: bytes
    lease: int = 0


class Release(Message, frozen=True):
    """End a lease early. Not answered."""

    lease: int


class Read(Message, frozen=True):
    """Write block i to the client's region `region_key` at `offsets[i]`. `deadline_s` from receipt.

    Blocks that are neighbours there may come as one write of up to `run_bytes`, whose immediate data says which
    (`pack_run`)."""

    op: int
    namespace: Namespace
    keys: bytes
    region_key: int
    offsets: tuple[int, ...]
    deadline_s: float
    trace: str = ""
    run_bytes: int = RUN_BYTES


class ReadDone(Message, frozen=True):
    """Sent after the last write of the read was acknowledged. `checksums` are 16 bytes a block, of the
    bytes as they were written to disk; the client verifies them against what it received."""

    op: int
    statuses: bytes
    checksums: bytes


class Suspect(Message, frozen=True):
    """What came of these blocks does not match their checksums: the shard checks them, and serves them no more
    until it has. Not answered."""

    namespace: Namespace
    keys: bytes


class CancelRead(Message, frozen=True):
    """Stop writing; answered with ReadDone as if finished."""

    op: int


class WriteOpen(Message, frozen=True):
    """Ask for room for these blocks. It is waited for, and kept, until `deadline_s` from receipt at most.
    `depths[i]`: full blocks before block i in its chain; where blocks give way, the deepest go first."""

    op: int
    namespace: Namespace
    keys: bytes
    checksums: bytes
    deadline_s: float
    depths: tuple[int, ...]
    trace: str = ""


class WriteReady(Message, frozen=True):
    """Write block i to the shard's region at `offsets[i]`; −1 where it exists already or has no room
    (`statuses[i]` says which; STORED there means: send it). Where no block is wanted the call is over."""

    op: int
    region_key: int
    offsets: tuple[int, ...]
    statuses: bytes


class WriteCommit(Message, frozen=True):
    """All wanted blocks were written and acknowledged."""

    op: int


class CancelWrite(Message, frozen=True):
    """The client has given the call up. Not answered."""

    op: int


class WriteDone(Message, frozen=True):
    """`statuses[i]`: STORED once the block is readable."""

    op: int
    statuses: bytes


class StoreRefused(Message, frozen=True):
    """The shard cannot do this; `reason` is a sentence."""

    op: int
    reason: str


class Ping(Message, frozen=True):
    """Either side, of a call that takes long: is it still open with you? Taken where it is, refused where not."""

    op: int


class StatRequest(Message, frozen=True):
    """Blocks and bytes of one namespace, or of all."""

    op: int
    namespace: Namespace | None = None


class StatDone(Message, frozen=True):
    op: int
    blocks: int
    nbytes: int
    counters: dict[str, int]


def pack_run(first: int, blocks: int) -> int:
    """The immediate data of a write of so many blocks, from number `first` of the read on."""
    return first | (blocks - 1) << _RUN_BITS


def unpack_run(imm: int, total: int) -> range:
    """Which of a read's `total` blocks a write with this immediate data has brought."""
    first, more = imm & ((1 << _RUN_BITS) - 1), imm >> _RUN_BITS
    return range(min(first, total), min(first + more + 1, total))


to_shard = Decoder(
    Match,
    Release,
    Read,
    Suspect,
    CancelRead,
    WriteOpen,
    WriteCommit,
    CancelWrite,
    Ping,
    StatRequest,
)
to_client = Decoder(MatchDone, ReadDone, WriteReady, WriteDone, Ping, StoreRefused, StatDone)
