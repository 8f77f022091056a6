"""Sizes and offsets of KV-Cache: rows, Layer Blocks, Full Blocks (paper §2, "Block layouts").

A *row* is one token's KV in one layer: the layer's parts (K and V, say) end to end. A *Layer Block*
is `[1, tokens, row]`; laid end to end over the layers, Layer Blocks are a *Full Block*
`[layers, tokens, row]`. Only Full Blocks reach storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class KVPart:
    """One named, opaque piece of a row; `nbytes` per token."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class KVGeometry:
    """The layout that every process of a cluster shares.

    `layers[i]` lists the parts of layer i; widths may differ by part and by layer.
    """

    block_tokens: int
    layers: tuple[tuple[KVPart, ...], ...]

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise ValueError(f"block_tokens must be at least 1, not {self.block_tokens}")
        if not self.layers or any(not parts for parts in self.layers):
            raise ValueError("a KV geometry needs at least one layer, and every layer one part")
        if any(part.nbytes < 1 for parts in self.layers for part in parts):
            raise ValueError("every KV part needs at least one byte per token")

    @cached_property
    def row_bytes(self) -> tuple[int, ...]:
        """Bytes of one token in each layer."""
        return tuple(sum(part.nbytes for part in parts) for parts in self.layers)

    @cached_property
    def row_starts(self) -> tuple[int, ...]:
        """`row_starts[i]`: bytes of one token in all layers before layer i; the last entry is the sum."""
        return tuple(accumulate(self.row_bytes, initial=0))

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def max_row_bytes(self) -> int:
        return max(self.row_bytes)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token over all layers."""
        return self.row_starts[-1]

    @property
    def full_block_bytes(self) -> int:
        return self.block_tokens * self.token_bytes

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold `tokens` tokens, the last one perhaps in part."""
        return -(-tokens // self.block_tokens)

    def full_blocks(self, tokens: int) -> int:
        return tokens // self.block_tokens

    def max_hit_blocks(self, prompt_tokens: int) -> int:
        """At most so many blocks of a prompt count as hits: its last token is always computed."""
        return max(prompt_tokens - 1, 0) // self.block_tokens

    def layer_offset(self, layer: int) -> int:
        """Where the Layer Block of `layer` begins in a Full Block."""
        return self.block_tokens * self.row_starts[layer]

    def flat_offset(self, capacity_tokens: int, layer: int, token: int) -> int:
        """Byte address of a row in the layer-major view `[layers, capacity_tokens, row]`.

        This is how peers address a request's whole KV (ownership of bytes stays with blocks).
        """
        return capacity_tokens * self.row_starts[layer] + token * self.row_bytes[layer]

    def flat_bytes(self, capacity_tokens: int) -> int:
        return capacity_tokens * self.token_bytes
