"""What DualPath must know of a model family. No torch: gateways and the supervisor read it too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dualpath.model.errors import ModelError

Config = Mapping[str, Any]
"""A checkpoint's `config.json`."""

FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn", "proportional"})
"""Kinds of RoPE whose angles depend on a token's position alone. With the others (dynamic, longrope) they
depend on the sequence's length as well, so KV of a shared prefix could not be reused."""


@dataclass(frozen=True)
class CachePart:
    """One tensor that the family's attention gives to its cache: per token `[heads, width]` elements."""

    name: str
    heads: int
    width: int

    @property
    def elements(self) -> int:
        return self.heads * self.width


class Family(ABC):
    """One family of `transformers` models: how a checkpoint's config maps to rows of KV-Cache.

    A row holds the parts of `parts` end to end, in the order in which the attention gives them to
    `update(keys, values, layer)`.
    """

    model_type: str
    """`model_type` in config.json."""

    model_class: str
    """Name of the class in `transformers` that holds the model's code."""

    attention: Literal["grouped", "latent"] = "grouped"
    """What the rows hold. `grouped`: keys after RoPE, and values, of each KV head. `latent`: the compressed
    latent of all heads, and the part of the keys that RoPE turns."""

    def check(self, config: Config) -> None:
        """Raise ModelError for a variant that would be computed wrongly. Extend in families with variants."""
        if config.get("quantization_config"):
            raise ModelError(
                "this checkpoint is quantized, which is not supported; use the unquantized one"
            )
        kind = rope_kind(config)
        if kind not in FIXED_ROPE:
            raise ModelError(
                f"RoPE of the kind {kind!r} depends on the sequence's length, so KV-Cache of a prefix cannot be "
                f"reused; supported kinds: {', '.join(sorted(FIXED_ROPE))}"
            )
        if self.slides(config):
            raise ModelError(
                "some layers of this checkpoint attend to a sliding window, which is not supported; "
                "use one whose layers attend to everything"
            )

    def slides(self, config: Config) -> bool:
        """Whether any layer sees a part of its context only."""
        return bool(config.get("use_sliding_window"))

    @abstractmethod
    def parts(self, config: Config, layer: int) -> tuple[CachePart, CachePart]:
        """The two tensors that layer `layer` caches, after RoPE. Raises ModelError where the config does not
        say how wide they are."""

    def weight_name(self, name: str) -> str:
        """The name that the model's code has for a tensor of the checkpoint. Experts' are
        `….mlp.experts.E.(gate|up|down)_proj.weight`."""
        return name


def grouped_parts(
    config: Config, *, kv_heads: int | None = None, width: int | None = None
) -> tuple[CachePart, CachePart]:
    """Keys and values of grouped-query attention; `kv_heads` and `width` where the config is silent (else one
    KV head for every head, and the hidden size's share)."""
    heads = number(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or kv_heads or heads
    width = config.get("head_dim") or width or number(config, "hidden_size") // heads
    return CachePart("k", kv_heads, width), CachePart("v", kv_heads, width)


def number(config: Config, name: str) -> int:
    """A number that every checkpoint's config has; raises ModelError where this one has not."""
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise ModelError(
            f"config.json says {name} is {value!r}, not a number above 0; copy the checkpoint again"
        )
    return value


def rope_kind(config: Config) -> str:
    """The kind of RoPE, from either spelling of the setting."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return str(rope.get("rope_type") or rope.get("type") or "default")
