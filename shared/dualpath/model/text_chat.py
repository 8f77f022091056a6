"""A model's chat template, rendered exactly as transformers renders it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dualpath.model.errors import ModelError

_SPECIAL_TOKENS = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip

Chat = Sequence[Mapping[str, Any]]


class ChatError(ValueError):
    """The template refuses these messages; the text says why."""


class ChatTemplate:
    """Messages to the text of a prompt. Create with `load`."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises ModelError where `source` is no Jinja template."""
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template cannot be read: {error}") from error

    @classmethod
    def load(cls, directory: Path) -> ChatTemplate | None:
        """The template of the model in `directory`: `chat_template.jinja`, or the one inside
        `tokenizer_config.json`. None where there is neither. Raises ModelError."""
        config = _read(directory / "tokenizer_config.json")
        file = directory / "chat_template.jinja"
        source = (
            file.read_text(encoding="utf-8")
            if file.is_file()
            else _default_template(config.get("chat_template"))
        )
        if source is None:
            return None
        return cls(source, _special_tokens(_read(directory / "special_tokens_map.json"), config))

    def render(
        self,
        messages: Chat,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt of `messages` (`role`, `content` text or a list of text parts, …) and of the functions that
        the model may call.

        Raises ChatError where the template refuses them, over the order of roles for example.
        """
        try:
            return self._template.render(
                messages=[_flattened(message) for message in messages],
                tools=tools or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ChatError(f"the model's chat template refuses these messages: {error}") from error

    def opening(self) -> str:
        """The text after which the model answers; empty where the template has no such text."""
        chat = [{"role": "user", "content": "x"}]
        try:
            asked = self.render(chat)
            told = self.render(chat, add_generation_prompt=False)
        except ChatError:
            return ""
        return asked.removeprefix(told) if asked.startswith(told) else ""


def flatten_content(content: str | Iterable[Mapping[str, Any]]) -> str:
    """Text parts as one text, a line break between two of them."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content)


def _flattened(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        return {**message, "content": flatten_content(content)}
    return dict(message)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(Extension):
    """`{% generation %}` marks what the assistant said, for training; for a prompt it says nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # What is set inside stays inside, as in transformers.
        return Scope(body).set_lineno(line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return content


def _default_template(entry: Any) -> str | None:
    """Old configurations list several templates by name; chats without tools use `default`."""
    if isinstance(entry, list):
        entry = {item["name"]: item["template"] for item in entry}
    if isinstance(entry, dict):
        entry = entry.get("default")
    return entry if isinstance(entry, str) else None


def _special_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    """Later sources win; a token is its text, or an object with its text as `content`."""
    tokens: dict[str, str] = {}
    for source in sources:
        for name in _SPECIAL_TOKENS:
            value = source.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                tokens[name] = value
    return tokens
