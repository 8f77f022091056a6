"""The tokenizer of `tiny` and `synthetic`: a byte is a token.

Ids 0 to 255 are the bytes themselves, then come four special tokens, then words such as " bca". No text
is encoded to the words, but a model that generates them is readable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

START, END, DOCUMENT, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|pad|>"
SPECIAL = (START, END, DOCUMENT, PAD)
START_ID, END_ID, DOCUMENT_ID, PAD_ID = range(256, 260)
FIRST_WORD_ID = 260

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages and messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'You may call these functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nTo call one, answer <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>' }}
{{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
{{- '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def write_tokenizer(directory: Path, vocab_size: int, max_context: int) -> None:
    """Write tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json."""
    files: dict[str, dict[str, Any]] = {
        "tokenizer.json": tokenizer_json(vocab_size),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": START,
            "eos_token": END,
            "pad_token": PAD,
            "model_max_length": max_context,
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {
            "bos_token_id": START_ID,
            "eos_token_id": END_ID,
            "pad_token_id": PAD_ID,
        },
    }
    for name, content in files.items():
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (directory / name).write_text(text + "\n", encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def tokenizer_json(vocab_size: int) -> dict[str, Any]:
    """A `tokenizers` file with `vocab_size` ids (at least 260)."""
    if vocab_size < FIRST_WORD_ID:
        raise ValueError(f"a byte tokenizer needs {FIRST_WORD_ID} ids or more, not {vocab_size}")
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    vocab = dict(zip(byte_alphabet(), range(256), strict=True))
    vocab |= {text: 256 + number for number, text in enumerate(SPECIAL)}
    vocab |= {word(token_id): token_id for token_id in range(FIRST_WORD_ID, vocab_size)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocab[text],
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for text in SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def byte_alphabet() -> list[str]:
    """The visible character that stands for each byte in byte-level vocabularies, as GPT-2 chose them."""
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)}
    visible |= set(range(ord("®"), ord("ÿ") + 1))
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]


def word(token_id: int) -> str:
    """The vocabulary entry of a word's id: a space (`Ġ`) and its number in letters."""
    number, letters = token_id, ""
    while number:
        number, digit = divmod(number, 26)
        letters = chr(ord("a") + digit) + letters
    return "Ġ" + letters
