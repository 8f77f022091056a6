"""Attention of a ragged batch over KV rows that lie where the node keeps them. Nothing is concatenated.

A batch is packed as `[1, Σ new, …]` without padding or mask. `transformers` hands each layer's new keys and
values to `RaggedCache.update`, which writes them into the rows, and then calls `ragged_attention`: each
request's queries attend to strided views of that request's rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from dualpath.model.families import CachePart

IMPLEMENTATION = "dualpath_ragged"
"""The name under which `transformers` finds `ragged_attention`."""


@dataclass(frozen=True, slots=True)
class LayerRows:
    """One request's rows in one layer, as views of its memory: `table` is `[tokens, row]`, `keys` and
    `values` are `[heads, tokens, width]` of the same memory."""

    table: Tensor
    keys: Tensor
    values: Tensor


def layer_rows(
    memory: Tensor, offset: int, tokens: int, parts: Sequence[CachePart], dtype: torch.dtype
) -> LayerRows:
    """View `tokens` rows at byte `offset` of the uint8 tensor `memory`.

    Raises RuntimeError where they do not lie in it, or `offset` is no multiple of the element size.
    """
    elements = sum(part.elements for part in parts)
    nbytes = tokens * elements * dtype.itemsize
    table = memory.narrow(0, offset, nbytes).view(dtype).view(tokens, elements)
    views, column = [], 0
    for part in parts:
        columns = table.narrow(1, column, part.elements)
        views.append(columns.view(tokens, part.heads, part.width).transpose(0, 1))
        column += part.elements
    return LayerRows(table, *views)


class RaggedCache(ABC):
    """What `transformers` takes for its KV cache, and asks for attention."""

    @abstractmethod
    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys (after RoPE) and values, `[1, heads, Σ new, width]`, into the requests' rows."""

    @abstractmethod
    def attend(self, module: Any, query: Tensor, scaling: float | None) -> Tensor:
        """`[1, heads, Σ new, width]` → `[1, Σ new, heads, width of values]`, after `update` of the same layer,
        whose attention `module` is."""


class PrefillCache(RaggedCache):
    """One layer of a prefill batch. The new tokens' rows are the last of each request's."""

    def __init__(self, rows: Sequence[LayerRows], ends: Sequence[int]) -> None:
        """`ends[r]`: where the tokens of row r end in the packed batch."""
        self._rows = rows
        self._bounds = list(pairwise((0, *ends)))

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        for row, (start, stop) in zip(self._rows, self._bounds, strict=True):
            row.keys[:, start - stop :].copy_(keys[0, :, start:stop])
            row.values[:, start - stop :].copy_(values[0, :, start:stop])
        return keys, values

    def attend(self, module: Any, query: Tensor, scaling: float | None) -> Tensor:
        outputs = [
            self._attend_row(module, query[0, :, start:stop], row, scaling)
            for row, (start, stop) in zip(self._rows, self._bounds, strict=True)
        ]
        return torch.cat(outputs, 1).transpose(0, 1).unsqueeze(0)

    def _attend_row(
        self, module: Any, queries: Tensor, row: LayerRows, scaling: float | None
    ) -> Tensor:
        """One request's: `[heads, new, width]` → `[heads, new, width of values]`."""
        return attend(queries, row.keys, row.values, scaling)


class DecodeCache(RaggedCache):
    """All layers of one decode step: every request has one new token. Few operations per row and layer, for
    on small models they would cost more than the arithmetic."""

    def __init__(self, rows: Sequence[Sequence[LayerRows]], tokens: Sequence[int]) -> None:
        """`rows[r][i]`: layer i of request r, over its capacity; `tokens[r]` of them are filled."""
        self._rows, self._tokens = rows, tokens
        self._layer = 0

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        self._layer = layer_idx
        parts = (keys[0].transpose(0, 1).flatten(1), values[0].transpose(0, 1).flatten(1))
        for row, token, new in zip(self._rows, self._tokens, torch.cat(parts, 1), strict=True):
            row[layer_idx].table[token].copy_(new)
        return keys, values

    def attend(self, module: Any, query: Tensor, scaling: float | None) -> Tensor:
        """Heads that share keys stand where one head's queries would: the keys are read once for all."""
        _, heads, batch, width = query.shape
        kv_heads = self._rows[0][self._layer].keys.shape[0]
        queries = query.view(1, kv_heads, heads // kv_heads, batch, width).unbind(3)
        outputs = []
        for row, token, each in zip(self._rows, self._tokens, queries, strict=True):
            keys = row[self._layer].keys.narrow(1, 0, token + 1).unsqueeze(0)
            values = row[self._layer].values.narrow(1, 0, token + 1).unsqueeze(0)
            outputs.append(scaled_dot_product_attention(each, keys, values, scale=scaling))
        return torch.cat(outputs).view(1, batch, heads, -1)


def ragged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    ragged: RaggedCache,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`transformers`' attention interface. `key` and `value` are the new ones: they have been written into
    the rows of `ragged`, from which all are read."""
    return ragged.attend(module, query, scaling), None


def attend(queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
    """Causal attention of the last n tokens: queries `[heads, n, w]` over keys, values `[kv_heads, tokens, ·]`.

    Heads that share keys read the same memory: a group is a dimension of stride 0.
    """
    heads, new, width = queries.shape
    kv_heads, tokens, _ = keys.shape
    group = heads // kv_heads
    query = queries.reshape(kv_heads, group, new, width)
    key = keys.unsqueeze(1).expand(-1, group, -1, -1)
    value = values.unsqueeze(1).expand(-1, group, -1, -1)
    if new == 1:
        output = scaled_dot_product_attention(query, key, value, scale=scaling)
    elif new == tokens:
        output = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    elif query.device.type == "cpu":
        output = _in_two(query, key, value, scaling)
    else:
        mask = causal_lower_right(new, tokens)
        output = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(heads, new, -1)


def _in_two(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Attention over the prefix, which needs no mask, and over the new tokens, which is causal, put together
    by their normalizers. A mask of `[new, tokens]` would take memory without bound, and twice the time."""
    prefix = key.shape[2] - query.shape[2]
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    before, log_before = flash(query, key[:, :, :prefix], value[:, :, :prefix], scale=scaling)
    after, log_after = flash(
        query, key[:, :, prefix:], value[:, :, prefix:], is_causal=True, scale=scaling
    )
    share = torch.sigmoid(log_before - log_after).unsqueeze(-1)
    return torch.lerp(after.float(), before.float(), share).to(query.dtype)


AttentionInterface.register(IMPLEMENTATION, ragged_attention)
