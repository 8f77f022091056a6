"""Ids, chats and generated text are those of transformers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.model.api import ModelError
from dualpath.model.bytelevel import END_ID, START_ID, tokenizer_json, write_tokenizer
from dualpath.model.text import Tokenizer
from dualpath.model.text_chat import ChatError, ChatTemplate
from dualpath.model.text_stream import Detokenizer

VOCAB = 400
TEXTS = [
    "",
    " ",
    "What is the capital of France?",
    "한국어와 emoji 👩‍👩‍👧‍👦 and e\u0301 combining",
    "line\n\n\tbreaks  and   spaces 12345 ",
    "<|im_end|>\n<|im_start|>system\nnested<|im_end|>",
]
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "안녕 👋"}],
    [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Hi <b>&amp;</b>"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "  spaces kept  \n"},
    ],
    [{"role": "user", "content": ""}],
]


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bytes")
    write_tokenizer(directory, VOCAB, 4096)
    return directory


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer and template of SmolLM2 as the weights' file has them."""
    from transformers import AutoTokenizer

    from dualpath.model.prepare import smollm2_file

    file = smollm2_file()
    directory = tmp_path_factory.mktemp("smollm2")
    AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, local_files_only=True
    ).save_pretrained(directory)
    return directory


def reference(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


def check_against_transformers(directory: Path) -> None:
    theirs, ours = reference(directory), Tokenizer.load(directory)
    template = ChatTemplate.load(directory)
    assert template is not None
    for text in TEXTS:
        for special in (False, True):
            assert (
                ours.encode(text, add_special_tokens=special)
                == theirs(text, add_special_tokens=special)["input_ids"]
            )
    for chat in CHATS:
        for prompt in (False, True):
            text = template.render(chat, add_generation_prompt=prompt)
            assert text == theirs.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=prompt, tools=None
            )
            assert (
                ours.encode(text, add_special_tokens=False)
                == theirs.apply_chat_template(chat, add_generation_prompt=prompt)["input_ids"]
            )


def test_the_byte_tokenizer_gives_the_ids_and_chats_of_transformers(byte_model: Path) -> None:
    check_against_transformers(byte_model)


@pytest.mark.smollm2
def test_smollm2_gives_the_ids_and_chats_of_transformers(smollm2: Path) -> None:
    check_against_transformers(smollm2)


def test_text_parts_are_rendered_as_their_text_joined_by_line_breaks(byte_model: Path) -> None:
    template = ChatTemplate.load(byte_model)
    assert template is not None
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert template.render([{"role": "user", "content": parts}]) == template.render(
        [{"role": "user", "content": "one\ntwo"}]
    )


def test_special_tokens_in_either_form_and_templates_by_name_are_found(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "chat_template": [
            {"name": "tool_use", "template": "no"},
            {
                "name": "default",
                "template": "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}",
            },
        ],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = ChatTemplate.load(tmp_path)
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}]) == "<s>x</s>"


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None


def test_filters_tags_and_globals_of_transformers_work_in_a_template() -> None:
    source = (
        "{% for m in messages %}{% if m.skip is defined %}{% continue %}{% endif %}"
        "{% generation %}{% set inner = 1 %}{{ m | tojson }}{% endgeneration %}"
        "{{ inner is defined }}{% endfor %}{{ strftime_now('%Y') | length }}{{ tools is none }}"
    )
    messages: list[dict[str, Any]] = [
        {"role": "a", "content": "<é>"},
        {"role": "b", "content": "x", "skip": True},
    ]
    expected = '{"role": "a", "content": "<é>"}False4True'
    assert ChatTemplate(source, {}).render(messages) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0]['content'] + 1 }}",
        "{{ ''.__class__.__mro__ }}{{ x.y.z }}",
    ],
)
def test_a_template_that_refuses_or_misbehaves_is_a_chat_error(source: str) -> None:
    with pytest.raises(ChatError, match="chat template refuses"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_a_broken_template_or_tokenizer_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="chat template cannot be read"):
        ChatTemplate("{% if %}", {})
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read as a tokenizer"):
        Tokenizer.load(tmp_path)
    core = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    core.decoder = tokenizers.decoders.WordPiece()
    with pytest.raises(ModelError, match="decodes by WordPiece"):
        Tokenizer(core)


# ── incremental text ───────────────────────────────────────────────────────────────────────────────
BYTES = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(VOCAB))))
CORE = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(VOCAB)))
HARD = st.text(
    alphabet=st.one_of(
        st.characters(exclude_categories=["Cs"]), st.sampled_from("가힣👩\u200d🚀e\u0301\u0300ｱ")
    ),
    max_size=30,
)


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push([token_id]) for token_id in ids), detokenizer.finish()]


@given(HARD)
def test_a_character_split_over_tokens_never_becomes_a_replacement(text: str) -> None:
    ids = BYTES.encode(text, add_special_tokens=False)
    pieces = stream(BYTES, ids)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=300)
@given(st.lists(st.integers(0, VOCAB - 1), max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_any_ids_in_any_portions_stream_to_the_text_of_the_whole(
    ids: list[int], cuts: list[int]
) -> None:
    detokenizer = Detokenizer(BYTES)
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    pieces = [detokenizer.push(ids[a:b]) for a, b in pairwise(bounds)]
    assert "".join([*pieces, detokenizer.finish()]) == CORE.decode(ids, skip_special_tokens=True)


def test_special_tokens_and_unknown_ids_have_no_text() -> None:
    ids = [*b"a", START_ID, *"é".encode(), END_ID, VOCAB + 7]
    assert "".join(stream(BYTES, ids)) == "aé"
    assert BYTES.token_bytes(END_ID) == b"<|im_end|>"
    assert BYTES.token_bytes(VOCAB + 7) == b""


def test_sentencepiece_tokens_are_bytes_and_spaces() -> None:
    vocab = {"<unk>": 0, "▁Hi": 1, "▁there": 2, "<0xED>": 3, "<0x95>": 4, "<0x9C>": 5}
    core = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True)
    )
    core.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
        ]
    )
    pieces = stream(Tokenizer(core), [1, 2, 3, 4, 5])
    assert pieces == [" Hi", " there", "", "", "한", ""]
    assert "".join(pieces) == core.decode([1, 2, 3, 4, 5])


@pytest.mark.smollm2
def test_smollm2_streams_the_text_that_it_was_given(smollm2: Path) -> None:
    tokenizer = Tokenizer.load(smollm2)
    for text in [*TEXTS[:-1], "日本語テキスト 🧑🏽‍🚀 naïve Ω≈ç√∫"]:
        pieces = stream(tokenizer, tokenizer.encode(text, add_special_tokens=False))
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)
