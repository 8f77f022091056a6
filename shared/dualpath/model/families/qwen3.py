"""Qwen3: queries and keys are normalized before RoPE; heads are 128 wide unless the config says otherwise."""

from __future__ import annotations

from dualpath.model.families.base import CachePart, Config, Family, grouped_parts


class Qwen3(Family):
    model_type = "qwen3"
    model_class = "Qwen3ForCausalLM"

    def parts(self, config: Config, layer: int) -> tuple[CachePart, CachePart]:
        return grouped_parts(config, kv_heads=32, width=128)
