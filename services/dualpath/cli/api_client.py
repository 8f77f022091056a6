"""The HTTP API as `dualpath chat` and `dualpath demo` use it: streamed chats, with how each was served."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self

import httpx

EXPLAIN = {"X-DualPath-Explain": "1"}
_CONNECT_S = 5.0
_SILENCE_S = 600.0
"""A prompt that waits in a queue says nothing until its first token."""

Message = dict[str, str]


class ApiProblem(Exception):
    """No answer, or no whole one; the text is a sentence for the user."""


class NothingListens(ApiProblem):
    """No server is there at all."""


@dataclass(frozen=True)
class Served:
    """A model as the server lists it; `max_context` is None where it does not say."""

    model: str
    max_context: int | None


@dataclass(frozen=True)
class Answer:
    """A whole answer. Times are the client's: `ttft_s` from the request to the first text, `tokens_per_s` of the
    tokens after the first (None where there is one only). `read_path` is `none` where nothing was read, and empty
    where the server is no DualPath."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    ttft_s: float
    tokens_per_s: float | None
    read_path: str
    bytes_read: tuple[int, int]
    """By the prefill side, and by the decode side."""


class ApiClient:
    """Talks to the API at `base_url`, which ends in `/v1`. Use as a context manager."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S),
            # A proxy of the environment could not reach this machine's own addresses.
            trust_env=not is_local(self.base_url),
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def served(self) -> Served:
        """The first model that is served. Raises ApiProblem."""
        try:
            response = self._http.get(f"{self.base_url}/models")
            if response.status_code == httpx.codes.NOT_FOUND:
                raise ApiProblem(f"there is no {response.url}; give the address that ends in /v1")
            _check(response)
            first = response.json()["data"][0]
            return Served(str(first["id"]), first.get("max_model_len"))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._problem(error) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ApiProblem(
                f"{self.base_url} does not speak OpenAI's API; give the address that ends in /v1"
            ) from error

    def chat(
        self,
        model: str,
        messages: Sequence[Message],
        on_text: Callable[[str], None],
        **parameters: Any,
    ) -> Answer:
        """Send a chat and stream its answer; `on_text` gets each piece of text. `parameters` that are None are
        left out. An exception in `on_text`, or KeyboardInterrupt, ends the request at the server too.
        Raises ApiProblem."""
        body = {
            "model": model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **{name: value for name, value in parameters.items() if value is not None},
        }
        reading = _Reading(time.monotonic(), on_text)
        try:
            url = f"{self.base_url}/chat/completions"
            with self._http.stream("POST", url, json=body, headers=EXPLAIN) as response:
                if not response.is_success:
                    response.read()
                    _check(response)
                for event in events(response.iter_bytes()):
                    reading.take(event)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._problem(error) from error
        return reading.answer()

    def _problem(self, error: Exception) -> ApiProblem:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return NothingListens(
                f"nothing listens at {self.base_url}; start a cluster with `dualpath up`, "
                "or give the address of one with --url"
            )
        if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
            return ApiProblem(f"{self.base_url} is no address; write http://HOST:PORT/v1")
        if isinstance(error, httpx.TimeoutException):
            return ApiProblem(f"{self.base_url} said nothing for {_SILENCE_S:g} s; ask again")
        return ApiProblem(f"the connection to {self.base_url} broke off ({error}); ask again")


class _Reading:
    """What a stream has said so far."""

    def __init__(self, began_s: float, on_text: Callable[[str], None]) -> None:
        self._began_s, self._on_text = began_s, on_text
        self._first_s: float | None = None
        self._last_s = began_s
        self._pieces: list[str] = []
        self._usage: dict[str, Any] = {}
        self._explain: dict[str, Any] = {}
        self._finished = False

    def take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise ApiProblem(_message(event) or "the server broke the answer off")
        for choice in event.get("choices") or ():
            self._last_s = time.monotonic()
            if self._first_s is None:
                self._first_s = self._last_s
            self._finished |= choice.get("finish_reason") is not None
            if text := (choice.get("delta") or {}).get("content"):
                self._pieces.append(text)
                self._on_text(text)
        self._usage = event.get("usage") or self._usage
        self._explain = event.get("dualpath") or self._explain

    def answer(self) -> Answer:
        if not self._finished or self._first_s is None:
            raise ApiProblem(
                "the server closed the connection in the middle of the answer; ask again"
            )
        tokens = int(self._usage.get("completion_tokens", 0))
        span_s = self._last_s - self._first_s
        details = self._usage.get("prompt_tokens_details") or {}
        sides = self._explain.get("bytes_read") or {}
        return Answer(
            text="".join(self._pieces),
            prompt_tokens=int(self._usage.get("prompt_tokens", 0)),
            cached_tokens=int(details.get("cached_tokens") or 0),
            tokens=tokens,
            ttft_s=self._first_s - self._began_s,
            tokens_per_s=(tokens - 1) / span_s if tokens > 1 and span_s > 0 else None,
            read_path=str(self._explain.get("read_path", "")),
            bytes_read=(int(sides.get("prefill", 0)), int(sides.get("decode", 0))),
        )


def events(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of server-sent events. Raises ApiProblem for what is none.

    >>> list(events([b'data: {"a"', b': 1}\\n\\ndata: [DONE]\\n\\n']))
    [{'a': 1}]
    """
    rest = b""
    for chunk in chunks:
        # Only at newlines: text itself may hold what Unicode counts as a line's end.
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or data == b"[DONE]":
                continue
            try:
                event = json.loads(data)
            except ValueError:
                event = None
            if not isinstance(event, dict):
                raise ApiProblem("the server sent something that is no event of OpenAI's API")
            yield event


def is_local(url: str) -> bool:
    """Is this an address of the loopback interface?"""
    try:
        host = httpx.URL(url).host
        return host == "localhost" or ip_address(host).is_loopback
    except (ValueError, httpx.InvalidURL):
        return False


def _check(response: httpx.Response) -> None:
    """Raises ApiProblem with what the server said, for all but a success."""
    if response.is_success:
        return
    try:
        said = _message(response.json())
    except ValueError:
        said = None
    raise ApiProblem(said or f"{response.url} answered with status {response.status_code}")


def _message(body: Any) -> str | None:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else None
