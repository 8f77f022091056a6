"""Stop strings: nothing of them is shown, nothing else is lost, wherever the text is cut."""

from __future__ import annotations

import itertools
import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from dualpath.gateway.pieces import AnswerText, Reading
from dualpath.gateway.stops import StopStrings
from dualpath.model.bytelevel import tokenizer_json
from dualpath.model.text import Tokenizer
from dualpath.wire.types import Sampled, Sampling

TOKENIZER = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(300))))
FEW = st.text("ab한👩\u0301", max_size=12)
"""Few letters, so that strings are found, nearly found, and overlap."""
STOPS = st.lists(st.text("ab한👩\u0301", min_size=1, max_size=5), max_size=4)


def before_first(text: str, stops: list[str]) -> tuple[str, bool]:
    """The definition: cut where the stop string begins that is complete first, of several the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def portions(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(FEW, STOPS, st.lists(st.integers(0, 12)))
def test_in_any_portions_the_text_ends_before_the_first_stop_string(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    finder = StopStrings(stops)
    shown = [finder.push(portion) for portion in portions(text, cuts)]
    shown.append(finder.finish())
    assert ("".join(shown), finder.stopped) == before_first(text, stops)


@given(FEW, STOPS, st.lists(st.integers(0, 12)))
def test_what_is_shown_before_the_end_is_never_taken_back_and_never_late(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    finder, so_far, shown = StopStrings(stops), "", ""
    for portion in portions(text, cuts):
        so_far += portion
        shown += finder.push(portion)
        wanted, stopped = before_first(so_far, stops)
        assert wanted.startswith(shown)
        if not stopped:
            held = wanted[len(shown) :]
            assert not held or any(stop.startswith(held) for stop in stops)


def test_a_string_that_was_complete_before_stops_counted_is_text() -> None:
    finder = StopStrings(["ab", "abab"])
    assert finder.push("xab", armed=False) == "x"
    assert finder.push("c") == "abc"
    assert finder.push("ab") == ""
    assert finder.stopped


@given(FEW, STOPS, st.integers(0, 6), st.lists(st.integers(0, 60)))
def test_a_stream_of_tokens_is_the_answer_at_once(
    text: str, stops: list[str], least: int, cuts: list[int]
) -> None:
    data = text.encode()
    sampling = Sampling(max_tokens=100, seed=0, min_tokens=least)
    tokens = [Sampled(byte) for byte in data]
    at_once = AnswerText(TOKENIZER, sampling, Reading(stops))
    whole = at_once.add(tokens, last=True)
    streamed = AnswerText(TOKENIZER, sampling, Reading(stops))
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [streamed.add(tokens[a:b], last=False) for a, b in itertools.pairwise(edges)]
    pieces.append(streamed.add([], last=True))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert streamed.stopped == at_once.stopped
    assert streamed.tokens == at_once.tokens == sum(len(piece.tokens) for piece in pieces)
    if not least:
        assert (whole.text, at_once.stopped) == before_first(text, stops)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_answer_ends_with_the_token_that_completes_the_string(size: int) -> None:
    text = AnswerText(TOKENIZER, Sampling(max_tokens=9, seed=0), Reading(["cd"], 10))
    tokens = [Sampled(byte) for byte in b"abcdef"]
    pieces = [text.add(tokens[i : i + size], last=False) for i in range(0, 6, size)]
    assert "".join(piece.text for piece in pieces) == "ab"
    assert (text.stopped, text.tokens) == (True, 4)
    assert [offset for piece in pieces for offset in piece.offsets] == [10, 11, 12, 13]
