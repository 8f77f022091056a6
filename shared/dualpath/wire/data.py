"""Messages over the link between a PE and a DE. The PE drives; the DE is memory that also pushes.

Order: DE → LoadDone; then per chunk: PE → Grant for layers, DE → a one-sided write of each into the PE's ring;
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
    """Credits for `places`, (layer, offset in the ring) each: push rows [start, stop) of the layer there, contiguous,
    to `ring_key`, in this order. A layer's write carries its number as immediate data."""

    attempt: Attempt
    places: tuple[tuple[int, int], ...]
    start: int
    stop: int
    ring_key: int


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
