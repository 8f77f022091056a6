"""Wishes and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.blocks import KVGeometry, KVPart
from dualpath.gateway.errors import ApiError
from dualpath.gateway.sampling import check_scores, choose_sampling
from dualpath.gateway.schema import MAX_SCORES, UNSUPPORTED, ChatBody, CompletionBody, parse_body
from dualpath.model.spec import ModelSpec
from dualpath.wire.types import Sampling

SPEC = ModelSpec(
    name="m",
    kind="synthetic",
    directory=Path(),
    dtype="float32",
    geometry=KVGeometry(64, ((KVPart("k", 8),),)),
    fingerprint="f",
    vocab_size=300,
    eos_ids=(257,),
    max_context=1000,
    family="synthetic",
)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION = {"model": "m", "prompt": "x"}


def chosen(prompt_tokens: int = 100, **fields: Any) -> Sampling:
    body = parse_body(ChatBody, CHAT | fields)
    return choose_sampling(body, prompt_tokens, SPEC, drawn_seed=42)


def test_defaults_are_those_of_openai_and_of_the_context() -> None:
    assert chosen() == Sampling(
        max_tokens=900, seed=42, temperature=1.0, top_p=1.0, top_k=0, stop_ids=(257,)
    )
    body = parse_body(CompletionBody, COMPLETION)
    assert choose_sampling(body, 100, SPEC, drawn_seed=1).max_tokens == 16
    assert choose_sampling(body, 990, SPEC, drawn_seed=1).max_tokens == 10


def test_an_answer_holds_so_many_log_probabilities_of_prompts() -> None:
    wishes: dict[str, Any] = {"echo": True, "logprobs": 3, "n": 2}
    most = MAX_SCORES // (4 * 2)
    check_scores(parse_body(CompletionBody, COMPLETION | wishes), most)
    with pytest.raises(ApiError, match="fewer") as caught:
        check_scores(parse_body(CompletionBody, COMPLETION | wishes), most + 1)
    assert (caught.value.status, caught.value.param) == (400, "logprobs")
    for less in ({"echo": False}, {"logprobs": None}):
        check_scores(parse_body(CompletionBody, COMPLETION | wishes | less), MAX_SCORES + 1)


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert chosen(max_tokens=5, max_completion_tokens=6).max_tokens == 6
    assert chosen(max_tokens=5, max_completion_tokens=None).max_tokens == 5


def test_exactly_the_rest_of_the_context_may_be_asked_for() -> None:
    assert chosen(max_tokens=900).max_tokens == 900
    with pytest.raises(ApiError, match=r"1001 .*100 in the prompt, 901"):
        chosen(max_tokens=901)


def test_stop_ids_are_eos_and_the_clients() -> None:
    assert chosen(stop_token_ids=[5, 257, 5]).stop_ids == (257, 5)
    assert chosen(stop_token_ids=[5], ignore_eos=True).stop_ids == (5,)
    assert chosen(ignore_eos=True).stop_ids == ()


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_seed_is_kept_within_63_bits_and_the_same_each_time(seed: int) -> None:
    assert 0 <= chosen(seed=seed).seed < 1 << 63
    assert chosen(seed=seed) == chosen(seed=seed)
    if seed >= 0:
        assert chosen(seed=seed).seed == seed


def test_log_probabilities_are_off_unless_asked_for() -> None:
    assert chosen(logprobs=False).top_logprobs is None
    assert chosen(logprobs=True).top_logprobs == 0
    assert chosen(logprobs=True, top_logprobs=3).top_logprobs == 3


def test_every_unsupported_parameter_is_refused_by_name_and_harmless_when_it_asks_for_nothing() -> (
    None
):
    for name, neutral in UNSUPPORTED.items():
        for value in (None, *neutral):
            parse_body(ChatBody, CHAT | {name: value})
        with pytest.raises(ApiError) as caught:
            parse_body(ChatBody, CHAT | {name: {"something": "else"}})
        assert caught.value.param == name
        assert caught.value.code == "unsupported_parameter"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from([*ChatBody.model_fields, *CompletionBody.model_fields, "n", "x"]),
        JSON,
        max_size=4,
    )
)
def test_any_json_is_taken_or_refused_with_400(fields: dict[str, Any]) -> None:
    for kind, base in ((ChatBody, CHAT), (CompletionBody, COMPLETION)):
        assert refusal(kind, base | fields) in (None, 400)


def refusal(kind: type[ChatBody] | type[CompletionBody], fields: dict[str, Any]) -> int | None:
    try:
        choose_sampling(parse_body(kind, fields), 10, SPEC, drawn_seed=1)
    except ApiError as error:
        return error.status
    return None
