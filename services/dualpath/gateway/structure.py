"""Which grammar an answer must follow. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dualpath.gateway.errors import ApiError, invalid
from dualpath.gateway.messages import NamedTool, Tool
from dualpath.gateway.schema import ChatBody, CompletionBody
from dualpath.gateway.tools import ToolFormat
from dualpath.model.grammar import GrammarError, checked, json_grammar

_COMPACT = {"x-guidance": {"whitespace_flexible": False}}


def grammar_of(body: ChatBody | CompletionBody, form: ToolFormat | None) -> str:
    """As `Sampling.grammar`; `form` is how the model calls functions. Raises ApiError(400) for what cannot be
    enforced."""
    if isinstance(body, CompletionBody):
        return ""
    grammar = _of_tools(body, form) or _of_format(body)
    for name in ("ignore_eos", "min_tokens"):
        if grammar and getattr(body, name):
            raise invalid(f"{name} would go on after the end of what was asked for", name)
    return grammar


def _of_format(body: ChatBody) -> str:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return ""
    if body.offered:
        raise _unsupported("response_format together with tools", "response_format")
    schema: dict[str, Any] = {"type": "object"}
    if wanted.json_schema is not None and wanted.json_schema.schema_ is not None:
        schema = wanted.json_schema.schema_
    try:
        return json_grammar(schema)
    except GrammarError as error:
        raise _unenforceable(error, "response_format") from error


def _of_tools(body: ChatBody, form: ToolFormat | None) -> str:
    tools, choice = body.offered, body.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice needs tools to choose from", "tool_choice")
        return ""
    if form is None:
        raise _unsupported("tools with a model whose chat template knows no tools", "tools")
    forced = choice == "required" or isinstance(choice, NamedTool)
    strict = any(tool.function.strict for tool in tools)
    if not (forced or strict):
        return ""
    if not form.key:
        raise _unsupported(
            "with this model, a forced tool_choice, or strict, ",
            "tool_choice" if forced else "tools",
        )
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
        if not tools:
            raise invalid(
                f"tool_choice names {choice.function.name!r}, which is not among the tools",
                "tool_choice",
            )
    one = isinstance(choice, NamedTool) or body.parallel_tool_calls is False
    try:
        return checked(_lark(form, tools, forced=forced, one=one))
    except GrammarError as error:
        raise _unenforceable(error, "tools") from error


def _lark(form: ToolFormat, tools: Sequence[Tool], *, forced: bool, one: bool) -> str:
    call = f"call_json: %json {json.dumps(_call_schema(form, tools))}"
    if form.bare:
        start = "start: call_json" if forced else "start: call_json | TEXT"
        return f"{start}\n{call}\nTEXT: /[^{{\\s](.|\\n)*/\n"
    opening, closing = json.dumps(form.opening), json.dumps(f"\n{form.closing}")
    if forced:
        calls = "call" if one else 'call ("\\n" call)*'
        return f'start: {calls}\ncall: {opening} "\\n" call_json {closing}\n{call}\n'
    return (
        f'start: call* end\nend: TEXT\ncall: opening "\\n" call_json {closing}\n'
        f"opening[lazy]: TEXT {opening}\n{call}\nTEXT: /(.|\\n)*/\n"
    )


def _call_schema(form: ToolFormat, tools: Sequence[Tool]) -> dict[str, Any]:
    return _COMPACT | {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.function.name},
                    form.key: tool.function.parameters or {"type": "object"},
                },
                "required": ["name", form.key],
                "additionalProperties": False,
            }
            for tool in tools
        ]
    }


def _unsupported(what: str, param: str) -> ApiError:
    return invalid(f"{what} cannot be had; leave it out", param, "unsupported_parameter")


def _unenforceable(error: GrammarError, param: str) -> ApiError:
    return invalid(f"{param}: the schema cannot be enforced: {error}", param, "invalid_value")
