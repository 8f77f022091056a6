"""Attention over rows of compressed latents (DeepSeek's multi-head latent attention).

A row is `[latent | rope]`. The keys and values of all heads are linear in the latent, so there are two ways to
the same result. *Expanded*: make every head's keys and values of all tokens, then attend. *Absorbed*: apply the
expansion to the queries and to the result instead, and attend to the rows as they are, as if all heads shared
one key. Which is less work depends on how many new tokens attend.

`module` is the model code's attention of the layer: its `kv_b_proj` is the expansion.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from dualpath.model.attention import DecodeCache, LayerRows, PrefillCache, attend


class LatentPrefillCache(PrefillCache):
    """One layer of a prefill batch."""

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Returns one token's: the model's code expands what it gets, and here that is thrown away."""
        super().update(keys, values, layer_idx)
        return keys[:, :, :1], values[:, :, :1]

    def _attend_row(
        self, module: Any, queries: Tensor, row: LayerRows, scaling: float | None
    ) -> Tensor:
        way = attend_absorbed if absorbing_pays(module, queries.shape[1]) else attend_expanded
        return way(module, queries, row, scaling)


class LatentDecodeCache(DecodeCache):
    """All layers of one decode step, absorbed."""

    def attend(self, module: Any, query: Tensor, scaling: float | None) -> Tensor:
        outputs = []
        for row, token, queries in zip(
            self._rows, self._tokens, absorb(module, query[0]).unbind(1), strict=True
        ):
            table = row[self._layer].table[: token + 1].view(1, 1, token + 1, -1)
            # Heads stand where one head's queries would: the rows are read once for all.
            mixed = scaled_dot_product_attention(queries[None, None], table, table, scale=scaling)
            outputs.append(mixed[0, 0])
        return values_of(module, torch.stack(outputs, 1)).transpose(0, 1).unsqueeze(0)


def absorbing_pays(module: Any, new: int) -> bool:
    """Whether attending to wider rows costs less than expanding them, by multiplications per row and head."""
    latent, expanded = module.kv_lora_rank, module.qk_nope_head_dim + module.v_head_dim
    return bool(new * (2 * latent - expanded) < latent * expanded)


def attend_absorbed(module: Any, queries: Tensor, row: LayerRows, scaling: float | None) -> Tensor:
    """Causal attention of the last n tokens: `[heads, n, nope + rope]` → `[heads, n, width of values]`."""
    table = row.table.unsqueeze(0)
    return values_of(module, attend(absorb(module, queries), table, table, scaling))


def attend_expanded(module: Any, queries: Tensor, row: LayerRows, scaling: float | None) -> Tensor:
    """The same, with keys and values of every head made for the time of the call."""
    keys, values = module.expand_kv(row.keys.unsqueeze(0), row.values.unsqueeze(0))
    # Fused attention on a CPU wants keys and values of one width.
    wide = max(queries.shape[2], values.shape[3])
    query, key, value = (
        pad(each, (0, wide - each.shape[-1])) for each in (queries, keys[0], values[0])
    )
    return attend(query, key, value, scaling)[..., : values.shape[3]]


def absorb(module: Any, queries: Tensor) -> Tensor:
    """Queries to attend to rows with: `[heads, n, nope + rope]` → `[heads, n, latent + rope]`."""
    nope = module.qk_nope_head_dim
    return torch.cat((queries[..., :nope] @ _expansion(module)[:, :nope], queries[..., nope:]), 2)


def values_of(module: Any, mixed: Tensor) -> Tensor:
    """Rows mixed by attention, `[heads, n, latent + rope]` → each head's values, `[heads, n, width]`."""
    expansion = _expansion(module)[:, module.qk_nope_head_dim :]
    return mixed[..., : module.kv_lora_rank] @ expansion.transpose(1, 2)


def _expansion(module: Any) -> Tensor:
    """`[heads, nope + values, latent]`."""
    weight: Tensor = module.kv_b_proj.weight
    return weight.view(module.num_heads, -1, module.kv_lora_rank)
