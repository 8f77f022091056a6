"""DeepSeek-V3 and R1: multi-head latent attention, and experts.

Of a token a layer caches the latent that all heads' keys and values are expanded from, and the one part of the
keys that RoPE turns: `kv_lora_rank + qk_rope_head_dim` elements, 576 in the published model, where keys and
values of its 128 heads would be 40,960.
"""

from __future__ import annotations

from dualpath.model.families.base import CachePart, Config, Family, number


class DeepseekV3(Family):
    model_type = "deepseek_v3"
    model_class = "DeepseekV3ForCausalLM"
    attention = "latent"

    def parts(self, config: Config, layer: int) -> tuple[CachePart, CachePart]:
        latent = CachePart("latent", 1, number(config, "kv_lora_rank"))
        return latent, CachePart("rope", 1, number(config, "qk_rope_head_dim"))
