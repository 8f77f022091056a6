"""Attention over compressed latents: both ways give what keys and values of every head would."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dualpath.model.attention import LayerRows, layer_rows
from dualpath.model.families import CachePart
from dualpath.model.latent import (
    LatentDecodeCache,
    LatentPrefillCache,
    absorbing_pays,
    attend_absorbed,
    attend_expanded,
)


@dataclass
class Expansion:
    weight: Tensor


class Module:
    """What the model code's attention has of widths and weights."""

    def __init__(self, heads: int, latent: int, nope: int, rope: int, values: int) -> None:
        self.num_heads, self.kv_lora_rank = heads, latent
        self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim = nope, rope, values
        weight = torch.randn(heads * (nope + values), latent) / latent**0.5
        self.kv_b_proj = Expansion(weight)

    def expand_kv(self, latents: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        both = (latents @ self.kv_b_proj.weight.T).view(1, latents.shape[2], self.num_heads, -1)
        keys, values = torch.tensor_split(both.transpose(1, 2), (self.qk_nope_head_dim,), 3)
        return torch.cat((keys, rope.expand(-1, self.num_heads, -1, -1)), 3), values

    def rows(self, tokens: int, capacity: int = 0) -> LayerRows:
        width = self.kv_lora_rank + self.qk_rope_head_dim
        memory = torch.randn(max(tokens, capacity) * width).view(torch.uint8)
        parts = (
            CachePart("latent", 1, self.kv_lora_rank),
            CachePart("rope", 1, self.qk_rope_head_dim),
        )
        return layer_rows(memory, 0, max(tokens, capacity), parts, torch.float32)

    def queries(self, new: int) -> Tensor:
        return torch.randn(self.num_heads, new, self.qk_nope_head_dim + self.qk_rope_head_dim)


def formula(module: Module, queries: Tensor, table: Tensor, scaling: float) -> Tensor:
    """Softmax over every head's own keys, in double precision; a token sees itself and those before."""
    latents, rope = torch.tensor_split(table, (module.kv_lora_rank,), 1)
    keys, values = module.expand_kv(latents[None, None], rope[None, None])
    scores = queries.double() @ keys[0].double().transpose(1, 2) * scaling
    new, tokens = scores.shape[1:]
    late = torch.ones(new, tokens, dtype=torch.bool).triu(tokens - new + 1)
    return scores.masked_fill(late, -math.inf).softmax(2) @ values[0].double()


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-5)


@given(
    heads=st.integers(1, 5),
    widths=st.tuples(*[st.integers(1, 24)] * 4),
    cached=st.integers(0, 70),
    new=st.integers(1, 70),
    seed=st.integers(0, 1000),
)
def test_both_ways_give_the_formula(
    heads: int, widths: tuple[int, int, int, int], cached: int, new: int, seed: int
) -> None:
    torch.manual_seed(seed)
    module = Module(heads, *widths)
    row, queries = module.rows(cached + new), module.queries(new)
    expected = formula(module, queries, row.table, 0.3)
    close(attend_absorbed(module, queries, row, 0.3), expected)
    close(attend_expanded(module, queries, row, 0.3), expected)


def test_few_new_tokens_are_absorbed_and_many_expanded() -> None:
    published = Module(1, 512, 128, 64, 128)
    assert absorbing_pays(published, 170)
    assert not absorbing_pays(published, 171)
    narrow = Module(1, 4, 8, 2, 8)
    assert absorbing_pays(narrow, 10_000)


def test_prefill_writes_the_new_rows_and_attends_to_all() -> None:
    torch.manual_seed(0)
    module = Module(4, 32, 16, 8, 20)
    rows, news, ends = [module.rows(90), module.rows(75)], [3, 60], [3, 63]
    assert absorbing_pays(module, 3)
    assert not absorbing_pays(module, 60)
    before = [row.table.clone() for row in rows]
    cache = LatentPrefillCache(rows, ends)
    latents, rope = torch.randn(1, 1, 63, 32), torch.randn(1, 1, 63, 8)
    returned = cache.update(latents, rope, 0)
    assert [part.shape[2] for part in returned] == [1, 1]
    queries = module.queries(63)
    output = cache.attend(module, queries.unsqueeze(0), 0.2)
    assert output.shape == (1, 63, 4, 20)
    fresh = torch.cat((latents, rope), 3)[0, 0]
    for row, old, new, end in zip(rows, before, news, ends, strict=True):
        assert torch.equal(row.table[:-new], old[:-new])
        assert torch.equal(row.table[-new:], fresh[end - new : end])
        expected = formula(module, queries[:, end - new : end], row.table, 0.2)
        close(output[0, end - new : end].transpose(0, 1), expected)


@pytest.mark.parametrize("layer", [0, 1])
def test_decode_appends_one_row_each_and_sees_only_what_is_filled(layer: int) -> None:
    torch.manual_seed(layer)
    module = Module(4, 32, 16, 8, 20)
    filled = [0, 5, 8]
    rows = [[module.rows(0, 9) for _ in range(2)] for _ in filled]
    rows[1][layer].table[6:] = math.nan
    latents, rope = torch.randn(1, 1, 3, 32), torch.randn(1, 1, 3, 8)
    cache = LatentDecodeCache(rows, filled)
    cache.update(latents, rope, layer)
    queries = module.queries(3)
    output = cache.attend(module, queries.unsqueeze(0), 0.2)
    assert output.shape == (1, 3, 4, 20)
    for number, count in enumerate(filled):
        table = rows[number][layer].table[: count + 1]
        assert torch.equal(table[count], torch.cat((latents, rope), 3)[0, 0, number])
        expected = formula(module, queries[:, number : number + 1], table, 0.2)
        close(output[0, number].unsqueeze(1), expected)
