"""Model families by `model_type`. A new family is one small file, and its line in `FAMILIES`."""

from __future__ import annotations

from dualpath.model.api import ModelError
from dualpath.model.families.base import CachePart, Config, Family
from dualpath.model.families.llama import Llama

FAMILIES: dict[str, Family] = {family.model_type: family for family in (Llama(),)}


def family_of(config: Config) -> Family:
    """The family that a `config.json` names; raises ModelError, naming the supported ones, for any other."""
    name = str(config.get("model_type", ""))
    family = FAMILIES.get(name)
    if family is None:
        raise ModelError(
            f"model family {name!r} is not supported; supported: {', '.join(sorted(FAMILIES))}"
        )
    family.check(config)
    return family


__all__ = ["FAMILIES", "CachePart", "Config", "Family", "family_of"]
