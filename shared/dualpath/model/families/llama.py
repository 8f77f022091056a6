"""Llama, and what shares its architecture (SmolLM2)."""

from __future__ import annotations

from dualpath.model.families.base import CachePart, Config, Family


class Llama(Family):
    model_type = "llama"
    model_class = "LlamaForCausalLM"

    def parts(self, config: Config, layer: int) -> tuple[CachePart, CachePart]:
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        width = config.get("head_dim") or config["hidden_size"] // heads
        return CachePart("k", kv_heads, width), CachePart("v", kv_heads, width)
