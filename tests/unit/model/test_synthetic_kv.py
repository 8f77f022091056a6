from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from xxhash import xxh3_64

from dualpath.blocks import BlockKeys, KVGeometry, KVPart, root_key
from dualpath.model.errors import ModelError
from dualpath.model.synthetic_kv import (
    block_sum,
    digest_rows,
    fill_rows,
    id_term,
    next_token,
    reference_tokens,
    token_state,
    token_states,
)
from dualpath.wire.types import Sampling

ROOT = root_key("fp")
GEOMETRY = KVGeometry(4, ((KVPart("kv", 24),), (KVPart("kv", 9),)))
GREEDY = Sampling(max_tokens=8, seed=1)

STATES = [
    "b0c5bb64cde501d3",
    "6e38e5de715b7dab",
    "967a630f6c077181",
    "556d95d7fde41d8c",
    "ec318ba2b3fb036e",
]
ROW = "10278a8da970a56d15ec213a"


def rows(states: list[int], layer: int, row_bytes: int) -> bytes:
    into = bytearray(len(states) * row_bytes)
    fill_rows(np.array(states, np.uint64), layer, row_bytes, memoryview(into))
    return bytes(into)


def test_kv_is_the_same_in_every_version() -> None:
    states = token_states(ROOT, [1, 2, 3, 4, 5], 4)
    assert [f"{state:016x}" for state in states] == STATES
    assert rows([int(states[0])], 1, 12).hex() == ROW


@given(ids=st.lists(st.integers(0, 2**31 - 1), max_size=20), size=st.integers(1, 6))
def test_states_made_one_by_one_are_those_made_at_once(ids: list[int], size: int) -> None:
    keys, single = BlockKeys(ROOT, size), []
    for token in ids:
        total = block_sum(keys.tail) + id_term(len(keys.tail), token)
        assert total % 2**64 == block_sum([*keys.tail, token])
        single.append(token_state(keys.parent, total))
        keys.extend([token])
    assert token_states(ROOT, ids, size).tolist() == single


def test_a_tokens_state_depends_on_its_block_up_to_it_and_on_what_was_before() -> None:
    base = token_states(ROOT, [1, 2, 3, 4], 4)
    assert token_states(ROOT, [1, 2, 9, 9], 4).tolist()[:2] == base.tolist()[:2]
    assert not set(token_states(ROOT, [2, 1, 3, 4], 4).tolist()[:1]) & set(base.tolist())
    assert token_states(ROOT, [1, 3, 2, 4], 4)[1] != base[1]
    assert not set(token_states(root_key("other"), [1, 2, 3, 4], 4).tolist()) & set(base.tolist())


@given(row_bytes=st.integers(1, 40), n=st.integers(0, 5))
def test_rows_have_any_width_and_stand_for_themselves(row_bytes: int, n: int) -> None:
    states = list(range(1, n + 1))
    assert rows(states, 0, row_bytes) == b"".join(rows([s], 0, row_bytes) for s in states)


def test_rows_differ_by_layer_and_by_token() -> None:
    assert len({rows([state], layer, 16) for state in range(1, 50) for layer in range(8)}) == 392


def test_wide_rows_are_made_in_pieces() -> None:
    wide = (1 << 22) - 8
    assert rows([1, 2, 3], 0, wide) == b"".join(rows([s], 0, wide) for s in (1, 2, 3))


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_digests_do_not_depend_on_the_portions(portions: list[bytes]) -> None:
    streamed = xxh3_64()
    for portion in portions:
        streamed.update(portion)
    assert digest_rows(memoryview(b"".join(portions))) == streamed.intdigest()


# ── the next token ─────────────────────────────────────────────────────────────────────────────────
digests = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4)


@given(digests, st.integers(0, 100), st.integers(0, 2**64 - 1))
def test_the_seed_counts_only_where_there_is_chance(
    layers: list[int], index: int, seed: int
) -> None:
    greedy = [next_token(layers, index, replace(GREEDY, seed=s), 10**6) for s in (0, seed)]
    assert greedy[0] == greedy[1]
    warm = replace(GREEDY, temperature=0.7)
    assert next_token(layers, index, warm, 10**6) == next_token(layers, index, warm, 10**6)


def test_seeds_give_different_tokens_at_a_temperature() -> None:
    seen = {
        next_token([1, 2], 0, replace(GREEDY, temperature=1.0, seed=seed), 10**6).token_id
        for seed in range(50)
    }
    assert len(seen) > 45


@given(digests, st.integers(0, 9))
def test_stop_ids_give_way_until_min_tokens(layers: list[int], index: int) -> None:
    plain = next_token(layers, index, GREEDY, 50).token_id
    stops = (plain, (plain + 1) % 50)
    short = replace(GREEDY, stop_ids=stops, min_tokens=index)
    assert next_token(layers, index, short, 50).token_id == plain
    long = replace(GREEDY, stop_ids=stops, min_tokens=index + 1)
    assert next_token(layers, index, long, 50).token_id == (plain + 2) % 50


def test_a_vocabulary_of_stop_ids_is_an_error() -> None:
    with pytest.raises(ModelError, match="nothing can be sampled"):
        next_token([1], 0, replace(GREEDY, stop_ids=(0, 1), min_tokens=1), 2)


@given(digests, st.integers(0, 5))
def test_log_probabilities_are_consistent(layers: list[int], n: int) -> None:
    assert next_token(layers, 0, GREEDY, 1000).logprob is None
    sampled = next_token(layers, 0, replace(GREEDY, top_logprobs=n), 1000)
    assert sampled.token_id == next_token(layers, 0, GREEDY, 1000).token_id
    assert sampled.logprob is not None
    assert len(sampled.top) == n
    if n:
        assert sampled.top[0] == (sampled.token_id, sampled.logprob)
        assert len({token for token, _ in sampled.top}) == n
        assert sum(math.exp(logprob) for _, logprob in sampled.top) < 1
        assert list(sampled.top) == sorted(sampled.top, key=lambda pair: -pair[1])


# ── the oracle ─────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Spec:
    geometry: KVGeometry = GEOMETRY
    fingerprint: str = "fp"
    vocab_size: int = 5000


@settings(max_examples=25, deadline=None)
@given(prompt=st.lists(st.integers(0, 4999), min_size=1, max_size=20), cut=st.integers(0, 8))
def test_an_attempt_that_goes_on_from_generated_tokens_gives_the_same_stream(
    prompt: list[int], cut: int
) -> None:
    whole = reference_tokens(Spec(), prompt, 8, GREEDY)
    rest = reference_tokens(Spec(), prompt + whole[:cut], 8 - cut, GREEDY, generated=cut)
    assert whole[:cut] + rest == whole


def test_answers_end_with_a_stop_id() -> None:
    whole = reference_tokens(Spec(), [1, 2, 3], 8, GREEDY)
    stopped = reference_tokens(Spec(), [1, 2, 3], 8, replace(GREEDY, stop_ids=(whole[3],)))
    assert stopped == whole[:4]


def test_answers_depend_on_prompt_model_and_tenant() -> None:
    answers = [
        reference_tokens(Spec(), [1, 2, 3], 4, GREEDY),
        reference_tokens(Spec(), [1, 2, 4], 4, GREEDY),
        reference_tokens(dataclasses.replace(Spec(), fingerprint="other"), [1, 2, 3], 4, GREEDY),
        reference_tokens(Spec(), [1, 2, 3], 4, GREEDY, root=root_key("fp", salt="tenant")),
    ]
    assert len(set(map(tuple, answers))) == 4
