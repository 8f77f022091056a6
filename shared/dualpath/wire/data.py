"""Messages over the link between a PE and a DE. The PE drives; the DE is memory that also pushes.

Order: DE → LoadDone; then per chunk and layer: PE → Grant, DE → one-sided write into the PE's ring;
PE → one-sided write into the DE's slots; at the end PE → PrefillDone. Who gives an attempt up tells the
scheduler, which tells the other side.
"""

from __future__ import annotations

from dualpath.wire.codec import Decoder, Message
from dualpath.wire.types import Attempt, AttemptStats, Sampled


class LoadDone(Message, frozen=True):
    """The DE's share of the read has ended: `blocks` of it, counted from its start, are there and right; of
    these, `hot_blocks` had been there before."""

    attempt: Attempt
    blocks: int
    bytes_read: int
    hot_blocks: int = 0


class Grant(Message, frozen=True):
    """A credit: push rows [start, stop) of `layer` to `ring_key` at `ring_offset`, contiguous. The write
    carries `imm` as its immediate data."""

    attempt: Attempt
    layer: int
    start: int
    stop: int
    ring_key: int
    ring_offset: int
    imm: int


class PrefillDone(Message, frozen=True):
    """All KV of the prompt is in the DE's slots. The DE owns the stream from here on.

    `first` is the sampled token (already published by the PE), `tail` the prompt's ids after its last
    full block, packed. Blocks from `hit_tokens` on are new and go to storage.
    """

    attempt: Attempt
    first: Sampled
    hit_tokens: int
    tail: bytes
    stats: AttemptStats


link = Decoder(LoadDone, Grant, PrefillDone)
