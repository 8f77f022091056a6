"""Model families by `model_type`. A new family is one small file, and its line in `FAMILIES`."""

from __future__ import annotations

from dualpath.model.errors import ModelError
from dualpath.model.families.base import CachePart, Config, Family, number
from dualpath.model.families.deepseek_v3 import DeepseekV3
from dualpath.model.families.llama import Llama
from dualpath.model.families.mixtral import Mixtral
from dualpath.model.families.qwen2 import Qwen2
from dualpath.model.families.qwen3 import Qwen3
from dualpath.model.families.qwen3_moe import Qwen3Moe

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (Llama(), Qwen2(), Qwen3(), Mixtral(), Qwen3Moe(), DeepseekV3())
}


def family_of(config: Config) -> Family:
    """The family that a `config.json` names; raises ModelError, naming the supported ones, for any other."""
    name = str(config.get("model_type") or "")
    if not name:
        raise ModelError("config.json has no model_type; copy it again from the checkpoint")
    family = FAMILIES.get(name)
    if family is None:
        raise ModelError(
            f"model family {name!r} is not supported; supported: {', '.join(sorted(FAMILIES))}"
        )
    family.check(config)
    return family


__all__ = ["FAMILIES", "CachePart", "Config", "Family", "family_of", "number"]
