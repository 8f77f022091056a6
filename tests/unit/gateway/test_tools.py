"""Calls of functions, as each family writes them, whole and in any portions."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.gateway.errors import ApiError
from dualpath.gateway.schema import ChatBody, parse_body
from dualpath.gateway.structure import grammar_of
from dualpath.gateway.tool_parser import CallDelta, Item, ToolParser, joined
from dualpath.gateway.tools import (
    DEEPSEEK,
    HERMES,
    LLAMA,
    MISTRAL,
    ToolCall,
    ToolFormat,
    format_of,
)
from dualpath.model.bytelevel import CHAT_TEMPLATE, END_ID, write_tokenizer
from dualpath.model.grammar import Grammars
from dualpath.model.history import make_history
from dualpath.model.sampler import sample
from dualpath.wire.types import Sampling

WEATHER = ToolCall("weather", '{"city": "서울 👩"}')
TIME = ToolCall("time", "{}")
WRITTEN: list[tuple[ToolFormat, str, list[str | ToolCall]]] = [
    (HERMES, "Just text, <b>no</b> call.", ["Just text, <b>no</b> call."]),
    (
        HERMES,
        'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "서울 👩"}}\n</tool_call>\n'
        '<tool_call>{"name": "time", "arguments": {}}</tool_call>\n',
        ["Let me see.", WEATHER, TIME],
    ),
    (HERMES, '<tool_call>{"name": "time"}', [TIME]),
    (HERMES, "<tool_call>not JSON</tool_call> ok", ["<tool_call>not JSON</tool_call>", " ok"]),
    # Blanks before what turns out to be no call are text, too.
    (HERMES, "Say\n <tool_call>x</tool_call> ", ["Say\n <tool_call>x</tool_call> "]),
    (LLAMA, "Say <|python_tag|>x", ["Say <|python_tag|>x"]),
    (HERMES, "<tool_call>never closed", ["<tool_call>never closed"]),
    (HERMES, "almost <tool_ca", ["almost <tool_ca"]),
    # A call has begun: what comes of its arguments is the client's, whole or not.
    (
        HERMES,
        '<tool_call>{"name": "time", "arguments": {"a": [1, "</tool_call>"',
        [ToolCall("time", '{"a": [1, "</tool_call>"')],
    ),
    (
        HERMES,
        '<tool_call>{"name": "time", "arguments": {"a": 1</tool_call>',
        [ToolCall("time", '{"a": 1')],
    ),
    (HERMES, '<tool_call>{"name": "time", "arguments": {}</tool_call> Well.', [TIME, "Well."]),
    (HERMES, '<tool_call>{"name": "time", "arguments": {}}\n', [TIME]),
    (HERMES, '<tool_call>{"name": "time", "arguments": {}} never closed', [TIME, "never closed"]),
    (HERMES, '<tool_call>{"arguments": {}, "name": "time"}</tool_call>', [TIME]),
    (
        HERMES,
        '<tool_call>{"name": "time", "arguments": "{}"}</tool_call>',
        ['<tool_call>{"name": "time", "arguments": "{}"}</tool_call>'],
    ),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "서울 👩"}}, {"name": "time", "arguments": {}}]',
        [WEATHER, TIME],
    ),
    (
        MISTRAL,
        '[TOOL_CALLS][{"name": "time", "arguments": {}, "id": "abc", "n": 1} , {"name": "time", "arguments": {}}]',
        [TIME, TIME],
    ),
    (MISTRAL, "[TOOL_CALLS] soon", ["[TOOL_CALLS] soon"]),
    (LLAMA, '{"name": "weather", "parameters": {"city": "서울 👩"}}', [WEATHER]),
    (LLAMA, '<|python_tag|>{"name": "time", "parameters": {}}', [TIME]),
    (
        LLAMA,
        '{"name": "time", "parameters": {}}; {"name": "time", "parameters": {}} Well.',
        [TIME, TIME, "Well."],
    ),
    (LLAMA, '{"a": 1} is JSON', ['{"a": 1} is JSON']),
    (LLAMA, 'I say {"name": "time"}', ['I say {"name": "time"}']),
    (
        DEEPSEEK,
        "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "서울 👩"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n'
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ["Well.", WEATHER, TIME],
    ),
]


def parse(form: ToolFormat, text: str, cuts: list[int]) -> tuple[str, list[ToolCall]]:
    items = read(ToolParser(form), text, cuts)
    return (
        "".join(item for item in items if isinstance(item, str)),
        joined(item for item in items if isinstance(item, CallDelta)),
    )


def read(parser: ToolParser, text: str, cuts: list[int]) -> list[Item]:
    items = list[Item]()
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    for a, b in pairwise(edges):
        items += parser.push(text[a:b])
    return items + parser.finish()


@given(st.sampled_from(WRITTEN), st.lists(st.integers(0, 300)))
def test_calls_and_text_are_told_apart_in_any_portions(
    case: tuple[ToolFormat, str, list[str | ToolCall]], cuts: list[int]
) -> None:
    form, text, expected = case
    shown, calls = parse(form, text, cuts)
    assert calls == [item for item in expected if isinstance(item, ToolCall)]
    assert shown == "".join(item for item in expected if isinstance(item, str))


PARTS = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "[TOOL_CALLS]",
            "<|python_tag|>",
            "<tool",
            " ",
            "\n",
            "a",
            "{",
            "}",
        ),
        *(
            '{"name": "time"}',
            '{"name": "time", "arguments": ',
            '{"name": "time", "parameters": ',
            "[",
            "]",
        ),
        *(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "\n```",
            "<｜tool▁call▁end｜>",
            ", ",
            '"',
            "\\",
        ),
        *(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n",
            "{}",
            '{"a": "',
            ', "id": "b"',
        ),
    ]
)
FORMS = st.sampled_from([HERMES, LLAMA, MISTRAL, DEEPSEEK])


@settings(max_examples=500)
@given(
    FORMS, st.lists(PARTS, max_size=10).map("".join), st.lists(st.integers(0, 150)), st.booleans()
)
def test_no_portions_change_what_is_read(
    form: ToolFormat, text: str, cuts: list[int], one: bool
) -> None:
    """So a stream's pieces of arguments, end to end, are what an answer at once has."""
    cut, whole = (read(ToolParser(form, one=one), text, where) for where in (cuts, []))
    for kind in (str, CallDelta):
        assert _together(cut, kind) == _together(whole, kind)


def _together(items: list[Item], kind: type) -> Any:
    if kind is str:
        return "".join(item for item in items if isinstance(item, str))
    deltas = [item for item in items if isinstance(item, CallDelta)]
    return joined(deltas), [delta.number for delta in deltas if delta.last]


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.lists(st.integers(0, 150)),
)
def test_arguments_are_the_model_s_own_text(value: Any, cuts: list[int]) -> None:
    """Whatever JSON they hold, braces and quotes and marks in strings, and however it is written."""
    for indent, ascii_only in ((None, True), (2, False)):
        arguments = json.dumps(
            {"value": value, "</tool_call>": "{"}, indent=indent, ensure_ascii=ascii_only
        )
        said = f'<tool_call>\n{{"name": "time", "arguments": {arguments}}}\n</tool_call>'
        assert parse(HERMES, said, cuts) == ("", [ToolCall("time", arguments)])


def test_a_call_comes_piece_by_piece_as_it_is_said() -> None:
    parser = ToolParser(HERMES)
    said = '<tool_call>{"name": "time", "arguments": {"a": "bc"}}</tool_call>'
    parts = [item for char in said for item in parser.push(char)]
    assert parts[0] == CallDelta(0, "time")
    assert [part.arguments for part in parts[1:] if isinstance(part, CallDelta)] == list(
        '{"a": "bc"}'
    )
    assert parts[-1] == CallDelta(0, None, "}", last=True)


def test_the_format_is_known_by_the_template() -> None:
    assert format_of(CHAT_TEMPLATE) is HERMES
    assert format_of("{{ messages }}") is None
    assert format_of("{% if tools %}[TOOL_CALLS]{% endif %}") is MISTRAL
    assert format_of('{% if tools %}{"name": x, "parameters": y}{% endif %}') is LLAMA
    assert format_of("{% if tools %}<｜tool▁calls▁begin｜>{% endif %}") is DEEPSEEK


# ── what a request asks for ────────────────────────────────────────────────────────────────────────
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"unit": {"enum": ["C", "한"]}},
                "required": ["unit"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "time")
]


def wanting(form: ToolFormat | None = HERMES, **fields: Any) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    return grammar_of(parse_body(ChatBody, body | fields), form)


@pytest.fixture(scope="session")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    directory = tmp_path_factory.mktemp("tools")
    write_tokenizer(directory, 300, 4096)
    return Grammars(directory, 300, (END_ID,))


def babble(grammars: Grammars, grammar: str, seed: int, likely: bytes = b"") -> str:
    """What a model without sense says within `grammar`; `likely` bytes come wherever they may."""
    sampling = Sampling(max_tokens=300, seed=seed, temperature=1.0, grammar=grammar)
    history = make_history(sampling, [], 0, grammars)
    assert history is not None
    noise, ids = np.random.default_rng(seed), list[int]()
    while not ids or ids[-1] != END_ID:
        logits = noise.normal(size=300).astype(np.float32)
        logits[END_ID + 1 :] -= 100  # Words are no text of UTF-8 bytes.
        logits[END_ID] += len(ids) - 20
        if len(ids) < len(likely):
            logits[likely[len(ids)]] += 100
        ids.append(sample(sampling, len(ids), logits, history).token_id)
        if ids[-1] != END_ID:
            history.append(ids[-1])
    return bytes(ids[:-1]).decode()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([HERMES, LLAMA]))
def test_a_forced_call_is_one_of_the_tools_with_fitting_arguments(
    grammars: Grammars, seed: int, form: ToolFormat
) -> None:
    text, calls = parse(form, babble(grammars, wanting(form, tool_choice="required"), seed), [])
    assert text == ""
    assert calls
    for call in calls:
        assert call.name in ("weather", "time")
        assert json.loads(call.arguments)["unit"] in ("C", "한")
    named = {"type": "function", "function": {"name": "time"}}
    text, calls = parse(form, babble(grammars, wanting(form, tool_choice=named), seed), [])
    assert (text, [call.name for call in calls]) == ("", ["time"])


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_strict_tools_leave_text_free_and_bind_calls(grammars: Grammars, seed: int) -> None:
    strict = [{"type": "function", "function": t["function"] | {"strict": True}} for t in TOOLS]  # type: ignore[operator]
    grammar = wanting(tools=strict)
    said = babble(grammars, grammar, seed, b"Well. <tool_call>")
    shown, calls = parse(HERMES, said, [])
    assert shown.startswith("Well.")
    assert calls
    assert json.loads(calls[0].arguments)["unit"] in ("C", "한")
    assert babble(grammars, grammar, seed, b"Only text.").startswith("Only text.")


def test_free_calls_and_no_tools_need_no_grammar() -> None:
    assert wanting() == wanting(tool_choice="auto") == wanting(tool_choice="none") == ""
    assert wanting(None, tools=[]) == wanting(None, tools=None) == ""


@pytest.mark.parametrize(
    ("form", "fields", "param"),
    [
        (None, {}, "tools"),
        (HERMES, {"tools": [], "tool_choice": "required"}, "tool_choice"),
        (HERMES, {"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        (MISTRAL, {"tool_choice": "required"}, "tool_choice"),
        (HERMES, {"response_format": {"type": "json_object"}}, "response_format"),
        (HERMES, {"tool_choice": "required", "min_tokens": 5}, "min_tokens"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    form: ToolFormat | None, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        wanting(form, **fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_special_tokens_that_mark_calls_have_text(tmp_path: Path) -> None:
    from dualpath.gateway.pieces import AnswerText, Reading
    from dualpath.model.text import Tokenizer
    from dualpath.wire.types import Sampled

    write_tokenizer(tmp_path, 300, 4096)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace("<|pad|>", "[TOOL_CALLS]"))
    reading = Reading(parser=ToolParser(MISTRAL), marks=MISTRAL.marks)
    answer = AnswerText(Tokenizer.load(tmp_path), Sampling(max_tokens=99, seed=0), reading)
    ids = [259, *b'[{"name": "time"}]']
    piece = answer.add([Sampled(token) for token in ids], last=True)
    assert (piece.text, answer.calls, joined(piece.calls)) == ("", [TIME], [TIME])
