"""The body of `/v1/responses`, and the chat that it asks for. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from dualpath.gateway.answers import ChatFormat
from dualpath.gateway.errors import ApiError, invalid
from dualpath.gateway.messages import Body, Flag
from dualpath.gateway.schema import ChatBody, parse_body, parse_plain, refuse_unless_neutral
from dualpath.wire.types import Sampling

Json = dict[str, Any]

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "max_tool_calls": (),
    "prompt": (),
    "prompt_cache_retention": (),
    "reasoning": ({}, {"effort": None}, {"effort": None, "summary": None}),
    "service_tier": ("auto", "default"),
    "truncation": ("disabled",),
}
"""Known parameters that are not implemented, and the values (null besides) that ask for nothing."""

SAME = (
    "cache_salt", "frequency_penalty", "ignore_eos", "logit_bias", "min_p", "min_tokens", "model",
    "parallel_tool_calls", "presence_penalty", "priority", "repetition_penalty", "seed", "stop", "timeout",
    "stop_token_ids", "stream", "temperature", "top_k", "top_p",
)  # fmt: skip
"""Parameters that chats have as well; they are checked there."""

_LOGPROBS = "message.output_text.logprobs"
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}


def _parts(value: Any) -> Any:
    """Content as text, of parts of either direction."""
    if not isinstance(value, list):
        return value
    kinds = ("input_text", "output_text", "text")
    for part in value:
        if not isinstance(part, dict) or part.get("type") not in kinds:
            raise ValueError(f"only parts of the types {', '.join(kinds)} are supported")
        if not isinstance(part.get("text"), str):
            raise ValueError("a text part needs `text`, a string")
    return "\n".join(part["text"] for part in value)


Text = Annotated[str, BeforeValidator(_parts)]


class MessageItem(Body):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class CallItem(Body):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class ResultItem(Body):
    type: Literal["function_call_output"]
    call_id: str
    output: Text
    id: str | None = None
    status: str | None = None


Item = MessageItem | CallItem | ResultItem
_ITEMS: dict[Any, type[Item]] = {
    None: MessageItem,
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": ResultItem,
}


class FormatConfig(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: Flag = None


class TextConfig(Body):
    format: FormatConfig | None = None
    verbosity: None = None


class ResponseTool(Body):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Flag = None


class StreamOptions(Body):
    include_obfuscation: Flag = None


def _input(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    if not isinstance(value, str):
        raise ValueError("must be text, or a list of items")
    return value


Input = Annotated[str | list[dict[str, Any]], BeforeValidator(_input)]


class ResponsesBody(Body):
    """What is not in SAME."""

    input: Input
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    store: Flag = None
    text: TextConfig | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Any = None
    top_logprobs: int | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = (
        None
    )
    metadata: dict[str, str] | None = None
    stream_options: StreamOptions | None = None
    # Labels: nothing depends on them.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


def parse_response(fields: Json) -> tuple[ResponsesBody, Json]:
    """The body, and of its fields those that chats have as well. Raises ApiError(400)."""
    same = {name: value for name, value in fields.items() if name in SAME}
    own = {}
    for name, value in fields.items():
        if name in UNSUPPORTED:
            refuse_unless_neutral(name, value, UNSUPPORTED[name])
        elif name not in SAME:
            own[name] = value
    return parse_plain(ResponsesBody, own), same


def items_of(body: ResponsesBody) -> list[Item]:
    """The input's items. Raises ApiError(400)."""
    if isinstance(body.input, str):
        return [MessageItem(role="user", content=body.input)]
    items = []
    for number, given in enumerate(body.input):
        kind = _ITEMS.get(given.get("type"))
        if kind is None:
            raise invalid(
                f"input[{number}].type: {given.get('type')!r} is not supported; there are message, function_call "
                "and function_call_output",
                f"input[{number}].type",
                "invalid_value",
            )
        try:
            items.append(parse_plain(kind, given))
        except ApiError as error:
            param = f"input[{number}]" + (f".{error.param}" if error.param else "")
            raise invalid(f"input[{number}].{error.message}", param, error.code) from error
    return items


def messages_of(items: list[Item]) -> list[Json]:
    """Items as messages of a chat: calls belong to the assistant's message before them."""
    messages: list[Json] = []
    for item in items:
        match item:
            case MessageItem():
                messages.append({"role": item.role, "content": item.content})
            case CallItem():
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
            case ResultItem():
                messages.append(
                    {"role": "tool", "tool_call_id": item.call_id, "content": item.output}
                )
    return messages


def chat_of(body: ResponsesBody, same: Json, messages: list[Json]) -> ChatBody:
    """The chat that is asked for, `messages` after the instructions. Raises ApiError(400) naming this body's
    parameters."""
    if body.instructions is not None:
        messages = [{"role": "system", "content": body.instructions}, *messages]
    fields: Json = {**same, "messages": messages, "tool_choice": _choice(body.tool_choice)}
    if body.max_output_tokens is not None:
        fields["max_completion_tokens"] = body.max_output_tokens
    if body.tools:
        fields["tools"] = [_tool(tool) for tool in body.tools]
    if body.text is not None and body.text.format is not None:
        fields["response_format"] = _format(body.text.format)
    if body.top_logprobs is not None or _LOGPROBS in (body.include or ()):
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    try:
        return parse_body(ChatBody, fields)
    except ApiError as error:
        raise renamed(error) from error


def renamed(error: ApiError) -> ApiError:
    """An error about a chat's parameter, by the name that it has here."""
    param, message = error.param, error.message
    for theirs, ours in _NAMES.items():
        if param is not None and param.startswith(theirs):
            param = param.replace(theirs, ours, 1)
            message = message.replace(theirs, ours, 1)
    return ApiError(error.status, message, param=param, code=error.code, retry=error.retry)


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and set(choice) == {"type", "name"}:
        return {"type": choice["type"], "function": {"name": choice["name"]}}
    return choice


def _tool(tool: ResponseTool) -> Json:
    function = tool.model_dump(exclude={"type"}, exclude_none=True)
    return {"type": "function", "function": function}


def _format(wanted: FormatConfig) -> Json:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    schema = {"name": wanted.name, "schema": wanted.schema_, "description": wanted.description}
    return {"type": "json_schema", "json_schema": schema}


def head_of(body: ResponsesBody, same: Json, form: ChatFormat, sampling: Sampling) -> Json:
    """What the object says of the request."""
    wanted = body.text.format if body.text is not None else None
    shown = (
        {"type": "text"} if wanted is None else wanted.model_dump(by_alias=True, exclude_none=True)
    )
    return {
        "id": f"resp_{form.request_id}",
        "object": "response",
        "created_at": form.created,
        "model": form.model,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": same.get("parallel_tool_calls") is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "store": body.store is not False,
        "temperature": sampling.temperature,
        "text": {"format": shown},
        "tool_choice": body.tool_choice or "auto",
        "tools": [tool.model_dump() for tool in body.tools or []],
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def output_items(response: Json) -> list[Item]:
    """A finished object's output as input of the next turn."""
    items: list[Item] = []
    for item in response["output"]:
        if item["type"] == "message":
            items.append(MessageItem(role="assistant", content=item["content"]))
        else:
            items.append(CallItem(**item))
    return items
