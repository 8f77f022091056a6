"""Qwen3-MoE: Qwen3 with experts."""

from __future__ import annotations

from dualpath.model.families.base import CachePart, Config, Family, grouped_parts


class Qwen3Moe(Family):
    model_type = "qwen3_moe"
    model_class = "Qwen3MoeForCausalLM"

    def parts(self, config: Config, layer: int) -> tuple[CachePart, CachePart]:
        return grouped_parts(config, kv_heads=4)
