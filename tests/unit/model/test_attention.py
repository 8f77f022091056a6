"""Attention over rows in place, against the formula written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from dualpath.model.attention import DecodeCache, LayerRows, PrefillCache, attend, layer_rows
from dualpath.model.families import CachePart

KV_HEADS, GROUP, WIDTH = 2, 3, 8
PARTS = (CachePart("k", KV_HEADS, WIDTH), CachePart("v", KV_HEADS, WIDTH))
ROW_BYTES = 2 * KV_HEADS * WIDTH * 4


def formula(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`[heads, n, width]` over `[kv_heads, tokens, width]`: the last n tokens, each sees itself and before."""
    keys = keys.repeat_interleave(GROUP, 0).double()
    values = values.repeat_interleave(GROUP, 0).double()
    new, tokens = queries.shape[1], keys.shape[1]
    scores = queries.double() @ keys.transpose(1, 2) / math.sqrt(WIDTH)
    seen = torch.ones(new, tokens, dtype=torch.bool).tril(tokens - new)
    return scores.masked_fill(~seen, -math.inf).softmax(-1) @ values


def random_rows(tokens: int, capacity: int, seed: int) -> LayerRows:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(capacity + 1, ROW_BYTES // 4, generator=generator)
    return layer_rows(table.view(torch.uint8).view(-1), ROW_BYTES, tokens, PARTS, torch.float32)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 90), st.integers(1, 90), st.integers(0, 10))
def test_attention_of_the_last_tokens(prefix: int, new: int, seed: int) -> None:
    rows = random_rows(prefix + new, prefix + new, seed)
    queries = torch.randn(KV_HEADS * GROUP, new, WIDTH)
    result = attend(queries, rows.keys, rows.values, None)
    expected = formula(queries, rows.keys, rows.values)
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-5)


def test_accelerators_mask_says_the_same_as_two_parts() -> None:
    """The mask that is used off the CPU is the lower right one: the last queries see all keys."""
    rows = random_rows(50, 50, 0)
    queries = torch.randn(KV_HEADS * GROUP, 20, WIDTH)
    key = rows.keys.repeat_interleave(GROUP, 0).unsqueeze(0)
    value = rows.values.repeat_interleave(GROUP, 0).unsqueeze(0)
    masked = scaled_dot_product_attention(
        queries.unsqueeze(0), key, value, attn_mask=causal_lower_right(20, 50)
    )
    torch.testing.assert_close(attend(queries, rows.keys, rows.values, None), masked[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_rows_are_the_memory_itself(dtype: torch.dtype) -> None:
    parts = (CachePart("latent", 1, 5), CachePart("rope", 1, 3))
    memory = torch.zeros(1000, dtype=torch.uint8)
    rows = layer_rows(memory, 8 * dtype.itemsize, 4, parts, dtype)
    assert (rows.keys.shape, rows.values.shape) == ((1, 4, 5), (1, 4, 3))
    rows.keys[0, 2, 4] = 1.5
    rows.values[0, 2, 0] = 2.5
    flat = memory[: 1000 // dtype.itemsize * dtype.itemsize].view(dtype)
    assert flat[8 + 2 * 8 + 4] == 1.5
    assert flat[8 + 2 * 8 + 5] == 2.5
    assert int((flat != 0).sum()) == 2
    with pytest.raises(RuntimeError):
        layer_rows(memory, 1000 - dtype.itemsize, 4, parts, dtype)


def test_prefill_writes_new_rows_and_nothing_else() -> None:
    rows = [random_rows(7, 7, 1), random_rows(3, 3, 2)]
    before = [row.table.clone() for row in rows]
    keys = torch.randn(1, KV_HEADS, 4, WIDTH)
    values = torch.randn(1, KV_HEADS, 4, WIDTH)
    cache = PrefillCache(rows, [1, 4])
    cache.update(keys, values, 0)
    assert torch.equal(rows[0].table[:6], before[0][:6])
    assert torch.equal(rows[0].keys[:, 6:], keys[0, :, :1])
    assert torch.equal(rows[0].values[:, 6:], values[0, :, :1])
    assert torch.equal(rows[1].keys, keys[0, :, 1:])
    assert torch.equal(rows[1].values, values[0, :, 1:])
    query = torch.randn(1, KV_HEADS * GROUP, 4, WIDTH)
    output = cache.attend(None, query, None)
    assert output.shape == (1, 4, KV_HEADS * GROUP, WIDTH)
    expected = formula(query[0, :, 1:], rows[1].keys, rows[1].values)
    torch.testing.assert_close(
        output[0, 1:].transpose(0, 1).double(), expected, rtol=1e-4, atol=1e-5
    )


def test_decode_appends_one_row_each_and_sees_only_what_is_filled() -> None:
    filled = [0, 5, 8]
    rows = [[random_rows(9, 9, 10 * r + layer) for layer in range(2)] for r in range(3)]
    rows[1][1].table[6:] = math.nan
    before = [[layer.table.clone() for layer in row] for row in rows]
    keys = torch.randn(1, KV_HEADS, 3, WIDTH)
    values = torch.randn(1, KV_HEADS, 3, WIDTH)
    query = torch.randn(1, KV_HEADS * GROUP, 3, WIDTH)
    cache = DecodeCache(rows, filled)
    cache.update(keys, values, 1)
    output = cache.attend(None, query, None)
    for r, count in enumerate(filled):
        layer = rows[r][1]
        assert torch.equal(rows[r][0].table, before[r][0])
        assert torch.equal(layer.table[:count], before[r][1][:count])
        assert torch.equal(layer.keys[:, count], keys[0, :, r])
        assert torch.equal(layer.values[:, count], values[0, :, r])
        expected = formula(
            query[0, :, r : r + 1], layer.keys[:, : count + 1], layer.values[:, : count + 1]
        )
        torch.testing.assert_close(output[0, r].double(), expected[:, 0], rtol=1e-4, atol=1e-5)
