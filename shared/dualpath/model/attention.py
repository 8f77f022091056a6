"""Attention of a ragged batch over KV rows that lie where the node keeps them. Nothing is concatenated.

A batch is packed as `[1, Σ new, …]` without padding or mask. `transformers` hands each layer's new keys and
values to `RaggedCache.update`, which writes them into the rows, and then calls `ragged_attention`, which
lets each request's queries attend to strided views of that request's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
class RowKV:
    """One request's keys and values in one layer: `[heads, tokens, width]` views of its rows.

    Packed tokens [start, stop) are its new ones; their rows are the last `stop − start` of the views.
    """

    start: int
    stop: int
    keys: Tensor
    values: Tensor


def part_views(
    rows: Tensor, offset: int, tokens: int, parts: Sequence[CachePart], dtype: torch.dtype
) -> list[Tensor]:
    """The parts of `tokens` rows at byte `offset` of the uint8 tensor `rows`, each `[heads, tokens, width]`.

    Raises RuntimeError where the rows do not lie in `rows`, or `offset` is no multiple of the element size.
    """
    elements = sum(part.elements for part in parts)
    nbytes = tokens * elements * dtype.itemsize
    table = rows.narrow(0, offset, nbytes).view(dtype).view(tokens, elements)
    views, column = [], 0
    for part in parts:
        columns = table.narrow(1, column, part.elements)
        views.append(columns.view(tokens, part.heads, part.width).transpose(0, 1))
        column += part.elements
    return views


class RaggedCache:
    """What `transformers` takes for its KV cache during one layer."""

    def __init__(self, rows: Sequence[RowKV]) -> None:
        self.rows = rows

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys (after RoPE) and values, `[1, heads, Σ new, width]`, into the requests' rows."""
        for row in self.rows:
            new = row.stop - row.start
            first = row.keys.shape[1] - new
            row.keys.narrow(1, first, new).copy_(keys[0].narrow(1, row.start, new))
            row.values.narrow(1, first, new).copy_(values[0].narrow(1, row.start, new))
        return keys, values


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
    """`transformers`' attention interface: query `[1, heads, Σ new, width]` → `[1, Σ new, heads, width]`.

    `key` and `value` are the new ones; all are read from `ragged`, into which they have been written.
    """
    output = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
    for row in ragged.rows:
        queries = query[0].narrow(1, row.start, row.stop - row.start)
        output[0].narrow(0, row.start, row.stop - row.start).copy_(
            attend(queries, row.keys, row.values, scaling).transpose(0, 1)
        )
    return output, None


def attend(queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
    """Causal attention of the last n tokens: queries `[heads, n, w]` over keys, values `[kv_heads, tokens, ·]`.

    Heads that share keys read the same memory: a group is a dimension of stride 0.
    """
    heads, new, width = queries.shape
    kv_heads, tokens, _ = keys.shape
    group = heads // kv_heads
    query = queries.view(kv_heads, group, new, width)
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
