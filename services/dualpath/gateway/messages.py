"""The messages of a chat and the functions that it offers: their fields, types and bounds. Pure."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from dualpath.model.text_chat import flatten_content

MAX_FIELDS = 64
MAX_TOOLS = 128

Flag = bool | None
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Body(BaseModel):
    """Base of all that a client sends."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _not_endless(cls, value: Any) -> Any:
        # Each unknown field would be an error of its own, and their list takes longer to make than to send.
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise ValueError(f"has {len(value)} fields, most of which nobody knows")
        return value


def _content(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be text or a list of text parts")
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise ValueError('only parts of the form {"type": "text", "text": …} are supported')
        if not isinstance(part.get("text"), str):
            raise ValueError("a text part needs `text`, a string")
    return flatten_content(value)


def _role(value: Any) -> Any:
    # Newer clients call the system's voice so.
    return "system" if value == "developer" else value


def _absent(value: Any) -> Any:
    if value not in (None, [], {}):
        raise ValueError("is not supported in a message; leave it out")
    return None


Absent = Annotated[Any, AfterValidator(_absent)]


class CalledFunction(Body):
    name: str
    arguments: str


class MadeCall(Body):
    """A call that an earlier answer made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        arguments: Any = self.function.arguments
        try:
            read = json.loads(arguments)
        except (ValueError, RecursionError):
            read = None
        # Templates write objects as JSON by themselves.
        arguments = read if isinstance(read, dict) else arguments
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}


class ChatMessage(Body):
    role: Annotated[Literal["system", "user", "assistant", "tool"], BeforeValidator(_role)]
    content: Annotated[str | None, BeforeValidator(_content)] = None
    name: str | None = None
    tool_calls: Annotated[list[MadeCall] | None, Field(max_length=MAX_TOOLS)] = None
    tool_call_id: str | None = None
    # What clients send back of an earlier answer's message, where it says nothing.
    annotations: Absent = None
    audio: Absent = None
    function_call: Absent = None
    reasoning: Absent = None
    reasoning_content: Absent = None
    refusal: Absent = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise ValueError("needs content: text, or a list of text parts")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant's message may have tool_calls")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("needs tool_call_id exactly where its role is tool")
        return self

    def for_template(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        for field in ("name", "tool_call_id"):
            if (value := getattr(self, field)) is not None:
                message[field] = value
        return message


class Function(Body):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Flag = None


class Tool(Body):
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        function = self.function.model_dump(exclude={"strict"}, exclude_none=True)
        return {"type": "function", "function": function}


class NamedFunction(Body):
    name: Name


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction
