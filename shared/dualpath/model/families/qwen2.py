"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from __future__ import annotations

from dualpath.model.families.base import CachePart, Config, Family, grouped_parts


class Qwen2(Family):
    model_type = "qwen2"
    model_class = "Qwen2ForCausalLM"

    def parts(self, config: Config, layer: int) -> tuple[CachePart, CachePart]:
        return grouped_parts(config, kv_heads=32)
