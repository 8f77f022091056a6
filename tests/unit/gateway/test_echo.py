"""A prompt with the log-probabilities of its tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from dualpath.gateway.echo import echoed
from dualpath.model.bytelevel import END_ID, write_tokenizer
from dualpath.model.text import Tokenizer
from dualpath.wire.types import TokenScores


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    write_tokenizer(tmp_path, 300, 4096)
    return Tokenizer.load(tmp_path)


def offsets(tokenizer: Tokenizer, prompt: Sequence[int], text: str) -> tuple[int, ...]:
    scores = TokenScores(0, array("f", [-1.0] * (len(prompt) - 1)).tobytes())
    return echoed(prompt, [scores], tokenizer, text).prompt_offsets


def test_special_tokens_have_a_place_in_the_text_that_names_them(tokenizer: Tokenizer) -> None:
    prompt = [ord("a"), END_ID, ord("b")]
    text = tokenizer.decode(prompt)
    assert text == f"a{tokenizer.decode([END_ID])}b"
    assert offsets(tokenizer, prompt, text) == (0, 1, len(text) - 1)


def test_what_tokenizing_put_before_a_text_has_no_place_in_it(tokenizer: Tokenizer) -> None:
    assert offsets(tokenizer, [END_ID, *"hé".encode()], "hé") == (0, 0, 1, 1)


def test_offsets_hold_where_a_prompt_ends_within_a_character(tokenizer: Tokenizer) -> None:
    prompt = [*b"ab", "é".encode()[0]]
    assert offsets(tokenizer, prompt, tokenizer.decode(prompt)) == (0, 1, 2)
