"""From a client's JSON to a request that is ready to be served. Nothing here reaches the workers."""

from __future__ import annotations

import asyncio
import secrets
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dualpath.blocks import BlockKeys, root_key
from dualpath.gateway.answers import AnswerFormat, ChatFormat, CompletionFormat
from dualpath.gateway.body import Posted
from dualpath.gateway.errors import ApiError, invalid
from dualpath.gateway.flights import Flight
from dualpath.gateway.pieces import AnswerText
from dualpath.gateway.request import Request
from dualpath.gateway.sampling import check_prompt, choose_sampling, prompt_param
from dualpath.gateway.schema import ChatBody, CompletionBody, parse_body
from dualpath.model.api import ModelError
from dualpath.model.spec import ModelSpec
from dualpath.model.text import Tokenizer
from dualpath.model.text_chat import ChatError, ChatTemplate
from dualpath.settings import Settings

_INLINE_BYTES = 4096
"""Shorter bodies are prepared on the event loop: a thread would cost more."""

_THREADS = 2


@dataclass(frozen=True)
class Accepted:
    """A valid request: what to serve, and how to say it."""

    flight: Flight
    form: AnswerFormat
    text: AnswerText
    stream: bool
    include_usage: bool


@dataclass(frozen=True)
class _Prepared:
    body: ChatBody | CompletionBody
    ids: array[int]
    keys: BlockKeys
    form: type[AnswerFormat]


class Intake:
    """Knows the model's text side and its limits. `close` it."""

    def __init__(self, settings: Settings, spec: ModelSpec) -> None:
        """Reads the tokenizer and chat template; raises ModelError."""
        if spec.directory is None:
            raise ModelError(f"model {spec.name} has no directory to read a tokenizer from")
        self.model = spec.name
        self.max_context = spec.max_context
        self._settings, self._spec = settings, spec
        self._tokenizer = Tokenizer.load(spec.directory)
        self._template = ChatTemplate.load(spec.directory)
        self._threads = ThreadPoolExecutor(_THREADS, "tokenize")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def accept_chat(self, posted: Posted, arrived_s: float) -> Accepted:
        """Raises ApiError."""
        return await self._accept(lambda: self._read_chat(posted.fields), posted.nbytes, arrived_s)

    async def accept_completion(self, posted: Posted, arrived_s: float) -> Accepted:
        """Raises ApiError."""
        return await self._accept(
            lambda: self._read_completion(posted.fields), posted.nbytes, arrived_s
        )

    def _read_chat(self, fields: dict[str, Any]) -> _Prepared:
        body = parse_body(ChatBody, fields)
        self.check_model(body.model)
        # A chat's special tokens are in its template.
        ids = self._tokenizer.encode(self._render(body), add_special_tokens=False)
        return self._prepare(body, ids, ChatFormat)

    def _read_completion(self, fields: dict[str, Any]) -> _Prepared:
        body = parse_body(CompletionBody, fields)
        self.check_model(body.model)
        ids = body.prompt
        if isinstance(ids, str):
            ids = self._tokenizer.encode(ids, add_special_tokens=True)
        return self._prepare(body, ids, CompletionFormat)

    def check_model(self, name: str) -> None:
        """Raises ApiError(404) for any model but the one that is served."""
        if name != self.model:
            raise ApiError(
                404,
                f"the model {name!r} does not exist here; this cluster serves {self.model!r}",
                param="model",
                code="model_not_found",
            )

    def _render(self, body: ChatBody) -> str:
        if self._template is None:
            raise invalid(
                f"the model {self.model} has no chat template; use /v1/completions",
                code="no_chat_template",
            )
        try:
            return self._template.render([message.for_template() for message in body.messages])
        except ChatError as error:
            raise invalid(str(error), "messages", "invalid_value") from error

    def _prepare(
        self, body: ChatBody | CompletionBody, ids: list[int], form: type[AnswerFormat]
    ) -> _Prepared:
        check_prompt(ids, self._spec, prompt_param(body))
        root = root_key(self._spec.fingerprint, salt=body.cache_salt or "")
        keys = BlockKeys(root, self._spec.geometry.block_tokens)
        keys.extend(ids)
        # Thousands of requests may wait here: a list takes nine times as much.
        return _Prepared(body, array("i", ids), keys, form)

    async def _accept(
        self, read: Callable[[], _Prepared], nbytes: int, arrived_s: float
    ) -> Accepted:
        started_s = time.monotonic()
        if nbytes < _INLINE_BYTES:
            got = read()
        else:
            # A body of some megabytes takes seconds to be checked: other clients' tokens must not wait for it.
            got = await asyncio.get_running_loop().run_in_executor(self._threads, read)
        body, ids = got.body, got.ids
        sampling = choose_sampling(body, len(ids), self._spec, drawn_seed=secrets.randbits(63))
        request_id = secrets.token_hex(12)
        request = Request(request_id, ids, sampling, got.keys, self._settings.max_attempts)
        flight = Flight(request, arrived_s, arrived_s + self._settings.request_deadline_s)
        flight.timings_s["tokenize"] = time.monotonic() - started_s
        return Accepted(
            flight,
            got.form(
                request_id=request_id,
                model=self.model,
                created=int(time.time()),
                tokenizer=self._tokenizer,
                logprobs=sampling.top_logprobs,
                prompt_ids=ids if body.return_token_ids else None,
            ),
            AnswerText(self._tokenizer, sampling),
            stream=bool(body.stream),
            include_usage=body.include_usage,
        )
