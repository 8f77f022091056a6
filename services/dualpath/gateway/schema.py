"""The bodies of the two endpoints: their fields, types and bounds. Pure.

A parameter of OpenAI's or vLLM's that would change the answer and is not implemented is refused by name, and
so is one that nobody knows: nothing is silently ignored but labels (`user` and its like).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)

from dualpath.gateway.errors import ApiError, invalid
from dualpath.gateway.messages import MAX_TOOLS, Body, ChatMessage, Flag, NamedTool, Tool

MAX_LOGPROBS = 20
MAX_STOP_IDS = 128
MAX_STOPS, MAX_STOP_CHARS = 4, 256
MAX_BIASES = 1024
MAX_CHOICES = 128
"""Choices of one request, over all of its prompts."""
MAX_SCORES = 1 << 20
"""Log-probabilities of prompts' tokens, alternatives too, in one answer: a gateway holds them all."""

StopIds = Annotated[
    list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_STOP_IDS, fail_fast=True)
]
Penalty = Annotated[float | None, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=1, lt=1 << 63)]
"""Bounded here already: Python refuses to write out integers of thousands of digits in an error."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "length_penalty": (1, 1.0),
    "metadata": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}
"""Known parameters that are not implemented, and the values (null besides) that ask for nothing."""


class StreamOptions(Body):
    include_usage: Flag = None
    include_obfuscation: Flag = None


def _stops(value: Any) -> Any:
    if value is None:
        return None
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string, or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"may hold {MAX_STOPS} strings, not {len(stops)}")
    if any(not 0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise ValueError(f"a stop string has 1 to {MAX_STOP_CHARS} characters")
    return stops


def _biases(value: dict[str, float]) -> dict[str, float]:
    if len(value) > MAX_BIASES:
        raise ValueError(f"may hold {MAX_BIASES} tokens, not {len(value)}")
    if any(not (token.isascii() and token.isdigit() and len(token) < 10) for token in value):
        raise ValueError('must have token ids as its keys, such as "50256"')
    return value


Bias = Annotated[float, Field(ge=-100, le=100)]


class _Generation(Body):
    """What both endpoints take."""

    model: str
    max_tokens: Count | None = None
    min_tokens: Annotated[int | None, Field(ge=0, lt=1 << 63)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1, lt=1 << 31)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    seed: Annotated[int | None, Field(ge=-(1 << 63), lt=1 << 63)] = None
    n: Annotated[int | None, Field(ge=1, le=MAX_CHOICES)] = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    repetition_penalty: Annotated[float | None, Field(gt=0, le=10)] = None
    logit_bias: Annotated[dict[str, Bias], AfterValidator(_biases)] | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_stops)] = None
    priority: Annotated[int | None, Field(ge=-(1 << 31), lt=1 << 31)] = None
    ignore_eos: Flag = None
    stop_token_ids: StopIds | None = None
    stream: Flag = None
    stream_options: StreamOptions | None = None
    return_token_ids: Flag = None
    cache_salt: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    timeout: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """Seconds from the request's arrival, after which it is given up."""
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


class JsonSchema(Body):
    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: Flag = None
    """The schema is always enforced."""


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_due(self) -> Self:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError("has a json_schema exactly where its type is json_schema")
        return self


class ChatBody(_Generation):
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: Flag = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: Flag = None

    @property
    def offered(self) -> list[Tool]:
        """The functions that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def wanted_tokens(self) -> int | None:
        """The newer name wins where both are given."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives of each token's log-probability; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


def _prompts(value: Any) -> list[str | list[int]]:
    """One prompt, or a list of several."""
    several = isinstance(value, list) and bool(value) and isinstance(value[0], (str, list))
    prompts = value if several else [value]
    if not all(_is_prompt(prompt) for prompt in prompts):
        raise ValueError("must be text, a list of token ids (integers), or a list of such prompts")
    return prompts


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(type(item) is int for item in value)
    )


class CompletionBody(_Generation):
    prompt: Annotated[Any, AfterValidator(_prompts)]
    """A list of prompts, once checked."""
    max_tokens: Annotated[int | None, Field(ge=0, lt=1 << 63)] = None
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    echo: Flag = None

    @property
    def only_echo(self) -> bool:
        """The client wants its prompt and no answer. One token is generated all the same, and dropped."""
        return self.max_tokens == 0

    @property
    def wanted_tokens(self) -> int | None:
        return 1 if self.only_echo else self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """As `ChatBody.wanted_logprobs`."""
        return self.logprobs


class TokenizeBody(Body):
    """Either a `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: Flag = None
    """Of a prompt: the model's BOS and such. On by default."""
    add_generation_prompt: Flag = None
    """Of messages: the opening of the answer. On by default."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("needs either prompt or messages")
        return self


class DetokenizeBody(Body):
    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(fail_fast=True)]


B = TypeVar("B", bound=_Generation)
T = TypeVar("T", bound=Body)


def parse_plain(kind: type[T], fields: dict[str, Any]) -> T:
    """Check a body's fields. Raises ApiError(400) naming the first that is wrong."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _first(error) from error


def parse_body(kind: type[B], fields: dict[str, Any]) -> B:
    """Check a body's fields. Raises ApiError(400) naming the first parameter that is wrong."""
    for name, value in fields.items():
        if name in UNSUPPORTED:
            refuse_unless_neutral(name, value, UNSUPPORTED[name])
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
    prompts = len(body.prompt) if isinstance(body, CompletionBody) else 1
    if prompts * (body.n or 1) > MAX_CHOICES:
        raise invalid(f"at most {MAX_CHOICES} answers can be given to one request", "n")
    if isinstance(body, ChatBody) and body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    if isinstance(body, CompletionBody) and body.only_echo and not body.echo:
        raise invalid(
            "max_tokens: 0 asks for nothing, unless with echo", "max_tokens", "invalid_value"
        )
    return body


def refuse_unless_neutral(name: str, value: Any, neutral: tuple[Any, ...]) -> None:
    """Raise ApiError(400) for a parameter that is not implemented, unless its value asks for nothing."""
    if value is None:
        return
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
    text = text[:1].lower() + text[1:]
    if not param:
        return invalid(f"the body {text}", code="invalid_value")
    return invalid(f"{param}: {text}", param, "invalid_value")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path
