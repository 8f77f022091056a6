"""The JSON of answers."""

from __future__ import annotations

import json
import math
from typing import Any

import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from dualpath.gateway.answers import (
    Answer,
    AnswerFormat,
    ChatFormat,
    CompletionFormat,
    Json,
    Opening,
    Usage,
)
from dualpath.gateway.pieces import AnswerText, Piece
from dualpath.gateway.sse import data_event
from dualpath.model.bytelevel import END_ID, tokenizer_json
from dualpath.model.text import Tokenizer
from dualpath.wire.types import FinishReason, Sampled, Sampling

TOKENIZER = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(300))))
SAMPLING = Sampling(max_tokens=100, seed=1, stop_ids=(END_ID, ord("!")))
USAGE = Usage(10, 3, 8)


def chat(*, logprobs: int | None = None) -> ChatFormat:
    return ChatFormat("id", "model", 7, TOKENIZER, logprobs)


def completion(*, logprobs: int | None = None) -> CompletionFormat:
    return CompletionFormat("id", "model", 7, TOKENIZER, logprobs)


def whole(form: AnswerFormat, piece: Piece, finish: FinishReason = "stop", **opening: Any) -> Json:
    return form.whole([Answer(Opening(**opening), piece, finish)], USAGE)


def sampled(data: bytes) -> list[Sampled]:
    return [Sampled(byte, -1.0, ((byte, -1.0),)) for byte in data]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="!")), st.data())
def test_pieces_in_any_portions_are_the_whole_text_and_offsets_fit(
    text: str, data: st.DataObject
) -> None:
    tokens = sampled(text.encode())
    answer = AnswerText(TOKENIZER, SAMPLING)
    pieces, at = [], 0
    while at < len(tokens):
        size = data.draw(st.integers(1, len(tokens) - at))
        pieces.append(answer.add(tokens[at : at + size], last=False))
        at += size
    pieces.append(answer.add([], last=True))
    assert "".join(piece.text for piece in pieces) == text
    offsets = [offset for piece in pieces for offset in piece.offsets]
    assert len(offsets) == len(tokens)
    starts = [len(text.encode()[:i].decode("utf-8", "ignore")) for i in range(len(tokens))]
    assert offsets == starts


def test_a_stop_token_has_no_text_but_is_counted() -> None:
    piece = AnswerText(TOKENIZER, SAMPLING).add(sampled(b"ok!"), last=True)
    assert (piece.text, len(piece.tokens), piece.offsets) == ("ok", 3, (0, 1, 2))


def test_a_character_that_is_never_completed_becomes_one_replacement_at_the_end() -> None:
    answer = AnswerText(TOKENIZER, SAMPLING)
    assert answer.add(sampled("한".encode()[:2]), last=False).text == ""
    assert answer.add([], last=True).text == "\ufffd"


def test_a_whole_chat() -> None:
    piece = AnswerText(TOKENIZER, SAMPLING).add(sampled(b"hey"), last=True)
    assert whole(chat(), piece, "length") == {
        "id": "chatcmpl-id",
        "object": "chat.completion",
        "created": 7,
        "model": "model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hey", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 8},
        },
    }


def test_chunks_carry_role_once_and_no_usage_of_their_own() -> None:
    answer, form = AnswerText(TOKENIZER, SAMPLING), chat()
    first = form.chunk(Opening(), answer.add(sampled(b"a"), last=False), None, first=True)
    second = form.chunk(Opening(), answer.add(sampled(b"b"), last=False), None, first=False)
    last = form.chunk(Opening(), Piece(), "stop", first=False)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "a"}
    assert second["choices"][0]["delta"] == {"content": "b"}
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in chunk for chunk in (first, second, last))
    assert form.usage_chunk(USAGE)["choices"] == []


def test_token_ids_come_where_they_were_asked_for() -> None:
    piece = AnswerText(TOKENIZER, SAMPLING).add(sampled(b"a!"), last=True)
    answer = whole(chat(), piece, prompt_ids=[1, 2])
    assert answer["prompt_token_ids"] == [1, 2]
    assert answer["choices"][0]["token_ids"] == [97, 33]
    form, opening = completion(), Opening(prompt_ids=[1, 2])
    first, second = (form.chunk(opening, piece, None, first=first) for first in (True, False))
    assert first["choices"][0]["prompt_token_ids"] == [1, 2]
    assert "prompt_token_ids" not in second["choices"][0]
    assert "token_ids" not in whole(completion(), piece)["choices"][0]


def test_an_echo_comes_once_and_before_everything() -> None:
    piece = AnswerText(TOKENIZER, SAMPLING).add(sampled(b"a"), last=False)
    opening = Opening(2, echo="Say: ")
    chunks = [completion().chunk(opening, piece, None, first=first) for first in (True, False)]
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Say: a", "a"]
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [2, 2]
    assert whole(completion(), piece, echo="Say: ")["choices"][0]["text"] == "Say: a"


def test_half_a_character_is_worth_a_chunk_only_for_its_log_probability_or_id() -> None:
    half = AnswerText(TOKENIZER, SAMPLING).add(sampled("é".encode()[:1]), last=False)
    assert not chat().says_something(Opening(), half)
    assert chat(logprobs=0).says_something(Opening(), half)
    assert completion().says_something(Opening(prompt_ids=[1]), half)


def test_log_probabilities_are_json_even_where_they_are_infinite() -> None:
    token = Sampled(97, -math.inf, ((98, -0.1), (97, -math.inf)))
    piece = AnswerText(TOKENIZER, SAMPLING).add([token], last=True)
    for form in (chat(logprobs=1), completion(logprobs=1)):
        text = data_event(whole(form, piece)).decode()
        logprobs = json.loads(text.removeprefix("data: "))["choices"][0]["logprobs"]
        assert "-9999.0" in str(logprobs)
    (entry,) = whole(chat(logprobs=1), piece)["choices"][0]["logprobs"]["content"]
    assert [best["token"] for best in entry["top_logprobs"]] == ["b"]


def test_of_tokens_with_the_same_text_the_most_probable_counts() -> None:
    """Ids that no token has are alike: all have none."""
    token = Sampled(50_002, -2.0, ((50_000, -0.1), (50_001, -1.0)))
    piece = AnswerText(TOKENIZER, SAMPLING).add([token], last=True)
    (choice,) = whole(completion(logprobs=2), piece)["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"": -0.1}]


def test_an_event_is_one_line() -> None:
    assert data_event({"text": "a\n\nb\r"}) == b'data: {"text":"a\\n\\nb\\r"}\n\n'
