"""Earlier answers in a prompt are found, and only where they are the same; memory is bounded."""

from __future__ import annotations

import json
from array import array

import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from dualpath.gateway.emitted import Emitted, Known, prompt_key
from dualpath.gateway.pieces import AnswerText, Reading
from dualpath.model.bytelevel import END_ID, tokenizer_json
from dualpath.model.text import Tokenizer
from dualpath.model.text_stream import Detokenizer
from dualpath.wire.types import Sampled, Sampling

MARK = "<A>"
TOKENIZER = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(300))))


def memory(capacity: int = 1 << 20) -> Emitted:
    return Emitted(MARK, capacity)


def test_each_turn_of_a_conversation_finds_all_earlier_answers() -> None:
    emitted, prompt = memory(), f"sys{MARK}"
    spans: list[Known] = []
    for turn in range(4):
        assert emitted.recall(prompt, "") == emitted.recall(prompt, "")
        assert list(emitted.recall(prompt, "").known) == spans
        answer = f"answer {turn} 한👩"
        ids = [turn, 7, 8]
        emitted.remember(prompt_key(prompt, ""), answer, ids)
        spans.append(Known(len(prompt), len(prompt) + len(answer), array("i", ids)))
        prompt += f"{answer}<end>user {turn}{MARK}"
    recall = emitted.recall(prompt, "")
    assert (len(recall.known), recall.unknown, recall.changed) == (4, 0, 0)


def test_the_cause_of_a_miss_is_told() -> None:
    emitted = memory()
    emitted.remember(prompt_key(f"p{MARK}", ""), "said", [1])
    edited = emitted.recall(f"p{MARK}sAid.<end>{MARK}", "")
    assert (edited.known, edited.unknown, edited.changed) == ((), 0, 1)
    strange = emitted.recall(f"q{MARK}said<end>{MARK}", "")
    assert (strange.known, strange.unknown, strange.changed) == ((), 1, 0)
    assert emitted.recall(f"p{MARK}", "") == memory().recall("", "")


def test_another_salt_knows_nothing() -> None:
    emitted = memory()
    emitted.remember(prompt_key(f"p{MARK}", "a"), "said", [1])
    assert emitted.recall(f"p{MARK}said<end>", "a").known
    assert not emitted.recall(f"p{MARK}said<end>", "b").known


def test_of_several_answers_to_one_prompt_the_longest_that_fits_is_meant() -> None:
    emitted = memory()
    for text, ids in (("yes", [1]), ("yes, indeed", [1, 2]), ("no", [3])):
        emitted.remember(prompt_key(f"p{MARK}", ""), text, ids)
    (known,) = emitted.recall(f"p{MARK}yes, indeed<end>", "").known
    assert list(known.ids) == [1, 2]


def test_an_answer_that_speaks_of_the_marker_is_one_answer() -> None:
    emitted = memory()
    emitted.remember(prompt_key(f"p{MARK}", ""), f"it is {MARK}!", [1])
    recall = emitted.recall(f"p{MARK}it is {MARK}!<end>{MARK}", "")
    assert (len(recall.known), recall.unknown) == (1, 0)


def test_memory_is_bounded_and_what_was_used_longest_ago_goes_first() -> None:
    emitted = memory(10_000)
    prompts = [f"{number}{MARK}" for number in range(100)]
    for prompt in prompts:
        emitted.remember(prompt_key(prompt, ""), "x", range(100))
        assert emitted.nbytes <= 10_000
        assert emitted.recall(f"{prompts[0]}x", "").known, "it is used all the time"
    kept = [prompt for prompt in prompts if emitted.recall(f"{prompt}x", "").known]
    assert kept == [prompts[0], *prompts[-(len(kept) - 1) :]]


@given(
    st.lists(st.one_of(st.integers(0, 299), st.sampled_from([*"한👩a".encode()])), max_size=20),
    st.lists(st.text("ab한", min_size=1, max_size=3), max_size=2),
)
def test_remembered_ids_are_exactly_the_remembered_text(ids: list[int], stops: list[str]) -> None:
    """Whatever was generated, valid text or not, whole or cut by a stop string."""
    text = AnswerText(
        TOKENIZER, Sampling(max_tokens=99, seed=0, stop_ids=(END_ID,)), Reading(stops)
    )
    shown = text.add([Sampled(token) for token in ids], last=True).text
    count, spoken = text.spoken()
    assert shown.startswith(spoken)
    again = Detokenizer(TOKENIZER)
    assert again.push(ids[:count]) == spoken
    assert not again.pending
    if count:
        assert ids[count - 1] != END_ID
