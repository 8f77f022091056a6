"""Llama, and what shares its architecture (SmolLM2)."""

from __future__ import annotations

from dualpath.model.families.base import CachePart, Config, Family, grouped_parts


class Llama(Family):
    model_type = "llama"
    model_class = "LlamaForCausalLM"

    def parts(self, config: Config, layer: int) -> tuple[CachePart, CachePart]:
        return grouped_parts(config)
