"""Mixtral: Llama with experts, whose weights go by other names in checkpoints."""

from __future__ import annotations

from dualpath.model.families.base import CachePart, Config, Family, grouped_parts, number

_EXPERT = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


class Mixtral(Family):
    model_type = "mixtral"
    model_class = "MixtralForCausalLM"

    def slides(self, config: Config) -> bool:
        window = config.get("sliding_window")
        return window is not None and window < number(config, "max_position_embeddings")

    def parts(self, config: Config, layer: int) -> tuple[CachePart, CachePart]:
        return grouped_parts(config, kv_heads=8)

    def weight_name(self, name: str) -> str:
        pieces = name.replace(".block_sparse_moe.", ".mlp.").split(".")
        return ".".join(_EXPERT.get(piece, piece) for piece in pieces)
