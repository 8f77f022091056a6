"""A streamed answer becomes the same figures however its bytes are cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.loadgen.replay import stream
from dualpath.loadgen.replay.errors import TurnError
from dualpath.loadgen.replay.stream import AnswerStream


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def choice(**fields: Any) -> bytes:
    return event(choices=[{"index": 0, **fields}])


USAGE = event(
    choices=[],
    usage={
        "prompt_tokens": 90,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 64},
    },
    dualpath={"read_path": "split"},
)
IDS = (
    b": a comment\n\n"
    + choice(text="é", token_ids=[5], prompt_token_ids=[1, 2])
    + choice(text="", token_ids=[6, 7], finish_reason=None)
    + choice(text=None, token_ids=[], finish_reason="length")
    + USAGE
    + b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(IDS)), max_size=12))
def test_any_cut_gives_the_same_answer(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(IDS)]
    answer = AnswerStream()
    for low, high in pairwise(edges):
        answer.feed(IDS[low:high], 1.0)
    answer.check_whole()
    assert answer.token_ids == [5, 6, 7]
    assert answer.text == "é"
    assert (answer.prompt_tokens, answer.cached_tokens, answer.generated()) == (90, 64, 3)
    assert answer.explain == {"read_path": "split"}


def test_times_are_those_of_the_first_second_and_last_token() -> None:
    told: list[float] = []
    answer = AnswerStream(told.append)
    answer.feed(choice(delta={"role": "assistant", "content": ""}), 1.0)
    assert not told
    for number, text in enumerate(("a", "b", "c")):
        answer.feed(choice(delta={"content": text}), 2.0 + number)
    answer.feed(choice(delta={}, finish_reason="stop") + USAGE + b"data: [DONE]\n\n", 9.0)
    assert (answer.first_s, answer.second_s, answer.last_s) == (2.0, 3.0, 4.0)
    assert told == [2.0]


def test_two_tokens_in_one_event_come_at_once() -> None:
    answer = AnswerStream()
    answer.feed(choice(text="ab", token_ids=[1, 2]), 4.0)
    assert answer.first_s == answer.second_s == answer.last_s == 4.0


def test_a_single_token_without_text_comes_with_the_end() -> None:
    answer = AnswerStream()
    answer.feed(choice(text="", finish_reason="stop"), 3.0)
    assert (answer.first_s, answer.second_s) == (3.0, None)


def test_tool_calls_count_as_what_was_said() -> None:
    answer = AnswerStream()
    answer.feed(choice(delta={"tool_calls": [{"index": 0}]}), 3.0)
    assert answer.first_s == 3.0


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        (event(error={"message": "no node", "code": "node_lost"}), "error-event", "no node"),
        (b"data: {oops\n\n", "malformed", "oops"),
        (b"data: [1]\n\n", "malformed", "no event"),
        (event(choices=[{"token_ids": "abc"}]), "malformed", "no event"),
    ],
)
def test_what_is_no_answer_is_an_error(data: bytes, kind: str, said: str) -> None:
    with pytest.raises(TurnError, match=said) as caught:
        AnswerStream().feed(data, 0.0)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("data", "said"),
    [(choice(text="a"), r"without \[DONE\], after 1 tokens"), (b"data: [DONE]\n", "finish_reason")],
)
def test_a_stream_that_ends_early_is_incomplete(data: bytes, said: str) -> None:
    answer = AnswerStream()
    answer.feed(data, 0.0)
    with pytest.raises(TurnError, match=said) as caught:
        answer.check_whole()
    assert caught.value.kind == "incomplete"


@pytest.mark.parametrize(
    ("limit", "data"), [("MAX_ANSWER_BYTES", b": more\n" * 50), ("MAX_LINE_BYTES", b"x" * 300)]
)
def test_an_endless_answer_is_cut_off(
    limit: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, limit, 200)
    with pytest.raises(TurnError, match="longer than 200 bytes"):
        AnswerStream().feed(data, 0.0)
