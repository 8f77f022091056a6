"""The bodies of the two endpoints: their fields, types and bounds. Pure.

A parameter of OpenAI's or vLLM's that would change the answer and is not implemented is refused by name, and
so is one that nobody knows: nothing is silently ignored but labels (`user` and its like).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from dualpath.gateway.errors import ApiError, invalid
from dualpath.model.text_chat import flatten_content

MAX_LOGPROBS = 20
MAX_STOP_IDS = 128

MAX_FIELDS = 64

Flag = bool | None
StopIds = Annotated[
    list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_STOP_IDS, fail_fast=True)
]
Count = Annotated[int, Field(ge=1, lt=1 << 63)]
"""Bounded here already: Python refuses to write out integers of thousands of digits in an error."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "length_penalty": (1, 1.0),
    "logit_bias": ({},),
    "metadata": ({},),
    "min_p": (0, 0.0),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0, 0.0),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "repetition_penalty": (1, 1.0),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "stop": ([],),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}
"""Known parameters that are not implemented, and the values (null besides) that ask for nothing."""


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _not_endless(cls, value: Any) -> Any:
        # Each unknown field would be an error of its own, and their list takes longer to make than to send.
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise ValueError(f"has {len(value)} fields, most of which nobody knows")
        return value


class StreamOptions(_Body):
    include_usage: Flag = None
    include_obfuscation: Flag = None


def _content(value: Any) -> str:
    if isinstance(value, str):
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


class ChatMessage(_Body):
    role: Annotated[Literal["system", "user", "assistant"], BeforeValidator(_role)]
    content: Annotated[str, BeforeValidator(_content)]
    name: str | None = None
    # What clients send back of an earlier answer's message, where it says nothing.
    annotations: Absent = None
    audio: Absent = None
    function_call: Absent = None
    reasoning: Absent = None
    reasoning_content: Absent = None
    refusal: Absent = None
    tool_calls: Absent = None

    def for_template(self) -> dict[str, Any]:
        message = {"role": self.role, "content": self.content}
        return message if self.name is None else {**message, "name": self.name}


class _Generation(_Body):
    """What both endpoints take."""

    model: str
    max_tokens: Count | None = None
    min_tokens: Annotated[int | None, Field(ge=0, lt=1 << 63)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1, lt=1 << 31)] = None
    seed: Annotated[int | None, Field(ge=-(1 << 63), lt=1 << 63)] = None
    ignore_eos: Flag = None
    stop_token_ids: StopIds | None = None
    stream: Flag = None
    stream_options: StreamOptions | None = None
    return_token_ids: Flag = None
    cache_salt: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    # Labels: nothing depends on them.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wanted_tokens(self) -> int | None:
        """The most tokens that the client wants; None: the endpoint's default."""
        return self.max_tokens


class ChatBody(_Generation):
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: Flag = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None

    @property
    def wanted_tokens(self) -> int | None:
        """The newer name wins where both are given."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives of each token's log-probability; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


def _prompt(value: Any) -> str | list[int]:
    """One prompt, perhaps as the only one of a list."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be text or a list of token ids")
    if any(isinstance(item, (str, list)) for item in value):
        raise ValueError("only one prompt per request is supported")
    if any(type(item) is not int for item in value):
        raise ValueError("must be text or a list of token ids, which are integers")
    return value


class CompletionBody(_Generation):
    prompt: Annotated[Any, AfterValidator(_prompt)]
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None

    @property
    def wanted_logprobs(self) -> int | None:
        """As `ChatBody.wanted_logprobs`."""
        return self.logprobs


B = TypeVar("B", bound=_Generation)


def parse_body(kind: type[B], fields: dict[str, Any]) -> B:
    """Check a body's fields. Raises ApiError(400) naming the first parameter that is wrong."""
    for name, value in fields.items():
        if name in UNSUPPORTED:
            _refuse_unless_neutral(name, value)
        elif name not in kind.model_fields:
            raise _unknown(name)
    try:
        body = kind.model_validate(
            {name: value for name, value in fields.items() if name not in UNSUPPORTED}
        )
    except ValidationError as error:
        raise _first(error) from error
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options is only allowed with stream: true", "stream_options")
    if isinstance(body, ChatBody) and body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    return body


def _refuse_unless_neutral(name: str, value: Any) -> None:
    if value is None:
        return
    neutral = UNSUPPORTED[name]
    # In Python True == 1, in JSON it is not.
    if any(type(value) is type(item) and value == item for item in neutral):
        return
    instead = " or ".join(repr(item) for item in neutral[:1]) or "null"
    raise invalid(
        f"{name} is not supported here; leave it out (or send {instead})",
        name,
        "unsupported_parameter",
    )


def _unknown(param: str) -> ApiError:
    return invalid(f"{param} is no known parameter; leave it out", param, "unknown_parameter")


def _first(error: ValidationError) -> ApiError:
    item = error.errors(include_url=False, include_input=False)[0]
    param = _path(item["loc"])
    match item["type"]:
        case "extra_forbidden":
            return _unknown(param)
        case "missing":
            return invalid(f"{param} is required", param, "missing_required_parameter")
    text = item["msg"].removeprefix("Value error, ")
    return invalid(f"{param}: {text[:1].lower()}{text[1:]}", param, "invalid_value")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path
