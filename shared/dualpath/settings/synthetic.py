"""Settings of the synthetic engine."""

from __future__ import annotations

from pydantic import BaseModel, Field


class SyntheticProfile(BaseModel, extra="forbid"):
    """Shape and emulated speed of the synthetic engine."""

    layers: int = Field(8, ge=1, le=256, description="Layers")
    row_bytes: int = Field(
        256, ge=8, le=1 << 20, description="KV bytes of a token in one layer (K and V)"
    )
    vocab_size: int = Field(32_000, ge=260, description="Token ids are below this")
    max_context: int = Field(32_768, ge=2, description="Longest prompt plus output, in tokens")
    forward_s: float = Field(0.0005, ge=0, description="Fixed time of a forward")
    token_s: float = Field(2e-6, ge=0, description="Linear time of a computed token")
    attention_s: float = Field(
        1e-10, ge=0, description="Attention time of one (new token, context token) pair"
    )
    decode_step_s: float = Field(0.002, ge=0, description="Fixed time of a decode step")
    all_to_all_bytes: int = Field(
        0,
        ge=0,
        le=1 << 20,
        description="Bytes that a token's AllToAll in a layer spreads over the node's engines; these then step "
        "together. 0: no collectives",
    )
