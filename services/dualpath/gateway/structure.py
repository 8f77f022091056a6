"""Which grammar an answer must follow. Pure."""

from __future__ import annotations

from typing import Any

from dualpath.gateway.errors import invalid
from dualpath.gateway.schema import ChatBody, CompletionBody
from dualpath.model.grammar import GrammarError, json_grammar


def grammar_of(body: ChatBody | CompletionBody) -> str:
    """As `Sampling.grammar`. Raises ApiError(400) for a schema that cannot be enforced."""
    wanted = body.response_format if isinstance(body, ChatBody) else None
    if wanted is None or wanted.type == "text":
        return ""
    for name in ("ignore_eos", "min_tokens"):
        if getattr(body, name):
            raise invalid(f"{name} would go on after the JSON's end; leave it out", name)
    schema: dict[str, Any] = {"type": "object"}
    if wanted.json_schema is not None and wanted.json_schema.schema_ is not None:
        schema = wanted.json_schema.schema_
    try:
        return json_grammar(schema)
    except GrammarError as error:
        raise invalid(
            f"response_format: the schema cannot be enforced: {error}",
            "response_format",
            "invalid_value",
        ) from error
