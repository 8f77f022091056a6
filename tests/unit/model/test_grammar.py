"""Output follows its grammar, token by token and from worker to worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.model.bytelevel import END_ID, write_tokenizer
from dualpath.model.grammar import MAX_GRAMMAR_BYTES, GrammarError, Grammars, checked, json_grammar
from dualpath.model.history import History, make_history
from dualpath.model.sampler import sample
from dualpath.model.synthetic_kv import next_token
from dualpath.wire.types import Sampling

VOCAB = 300
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["한국어", "👩 a"]}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="session")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    directory = tmp_path_factory.mktemp("grammar")
    write_tokenizer(directory, VOCAB, 4096)
    return Grammars(directory, VOCAB, (END_ID,))


def parameters(schema: dict[str, Any], **more: Any) -> Sampling:
    return Sampling(max_tokens=400, stop_ids=(END_ID,), grammar=json_grammar(schema), **more)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 1.0]), st.integers(0, 12))
def test_whatever_the_logits_the_output_is_json_of_the_schema(
    grammars: Grammars, seed: int, temperature: float, split: int
) -> None:
    """And a worker that takes over after `split` tokens, from the ids alone, goes on in the same way."""
    sampling = parameters(SCHEMA, seed=seed, temperature=temperature)
    noise = np.random.default_rng(seed)
    ids: list[int] = []
    history = make_history(sampling, [], 0, grammars)
    assert history is not None
    for index in range(sampling.max_tokens):
        logits = noise.normal(size=VOCAB).astype(np.float32)
        # An integer may have any number of digits.
        logits[[*b"0123456789"]] -= index / 4
        token = sample(sampling, index, logits, history).token_id
        if token == END_ID:
            break
        ids.append(token)
        history.append(token)
        if index == split:
            history = make_history(sampling, ids, len(ids), grammars)
            assert history is not None
    answer = json.loads(bytes(ids))
    assert set(answer) == {"name", "size"}
    assert answer["name"] in SCHEMA["properties"]["name"]["enum"]
    assert isinstance(answer["size"], int)


def test_the_synthetic_engine_follows_grammars_too(grammars: Grammars) -> None:
    sampling = parameters({"const": {"text": "👩 한"}}, seed=0)
    history = make_history(sampling, [], 0, grammars)
    assert history is not None
    ids: list[int] = []
    while not ids or ids[-1] != END_ID:
        allowed = history.allowed(VOCAB)
        ids.append(next_token([1, 2], len(ids), sampling, VOCAB, allowed).token_id)
        if ids[-1] != END_ID:
            history.append(ids[-1])
    assert json.loads(bytes(ids[:-1])) == {"text": "👩 한"}


def test_ids_beyond_the_vocabulary_are_never_allowed(grammars: Grammars) -> None:
    history = make_history(parameters({}, seed=0), [], 0, grammars)
    assert history is not None
    allowed = history.allowed(VOCAB + 100)
    assert allowed is not None
    assert allowed.shape == (VOCAB + 100,)
    assert not allowed[VOCAB:].any()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"$ref": "#/nowhere"},
        {"not": {"type": "string"}},
        {"type": "string", "pattern": "(?=x)"},
        {"enum": ["x" * MAX_GRAMMAR_BYTES]},
        {"$ref": "#"},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    ],
)
def test_what_cannot_be_enforced_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError):
        json_grammar(schema)


def test_a_broken_grammar_is_refused() -> None:
    with pytest.raises(GrammarError):
        checked("start: nowhere")


def test_without_a_history_a_grammar_is_an_error() -> None:
    sampling = parameters({}, seed=0)
    with pytest.raises(ValueError, match="ids that came before"):
        sample(sampling, 0, np.zeros(VOCAB, np.float32))
    with pytest.raises(ValueError, match="vocabulary"):
        make_history(sampling, [], 0)
    assert History(Sampling(max_tokens=1, seed=0)).allowed(3) is None


def test_a_model_whose_tokenizer_is_missing_says_so(tmp_path: Path) -> None:
    from dualpath.model.errors import ModelError

    with pytest.raises(ModelError, match="grammars"):
        Grammars(tmp_path, VOCAB, (END_ID,)).start(json_grammar({}))
