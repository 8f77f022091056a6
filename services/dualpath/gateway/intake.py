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

_INLINE = 2000
"""Prompts of fewer characters or ids are prepared on the event loop: a thread would cost more."""

_THREADS = 2


@dataclass(frozen=True)
class Accepted:
    """A valid request: what to serve, and how to say it."""

    flight: Flight
    form: AnswerFormat
    text: AnswerText
    stream: bool
    include_usage: bool


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

    async def accept_chat(self, fields: dict[str, Any], arrived_s: float) -> Accepted:
        """Raises ApiError."""
        body = parse_body(ChatBody, fields)
        self.check_model(body.model)
        return await self._accept(body, self._render(body), arrived_s, ChatFormat)

    async def accept_completion(self, fields: dict[str, Any], arrived_s: float) -> Accepted:
        """Raises ApiError."""
        body = parse_body(CompletionBody, fields)
        self.check_model(body.model)
        return await self._accept(body, body.prompt, arrived_s, CompletionFormat)

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

    async def _accept(
        self,
        body: ChatBody | CompletionBody,
        prompt: str | list[int],
        arrived_s: float,
        form: type[AnswerFormat],
    ) -> Accepted:
        started_s = time.monotonic()

        def prepare() -> tuple[array[int], BlockKeys]:
            return self._tokenize(body, prompt)

        ids, keys = await self._run(prepare, len(prompt))
        sampling = choose_sampling(body, len(ids), self._spec, drawn_seed=secrets.randbits(63))
        request_id = secrets.token_hex(12)
        request = Request(request_id, ids, sampling, keys, self._settings.max_attempts)
        flight = Flight(request, arrived_s, arrived_s + self._settings.request_deadline_s)
        flight.timings_s["tokenize"] = time.monotonic() - started_s
        return Accepted(
            flight,
            form(
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

    async def _run(
        self, work: Callable[[], tuple[array[int], BlockKeys]], size: int
    ) -> tuple[array[int], BlockKeys]:
        if size < _INLINE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _tokenize(
        self, body: ChatBody | CompletionBody, prompt: str | list[int]
    ) -> tuple[array[int], BlockKeys]:
        """The prompt's ids and block keys. A chat's special tokens are in its template."""
        if isinstance(prompt, str):
            special = isinstance(body, CompletionBody)
            prompt = self._tokenizer.encode(prompt, add_special_tokens=special)
        check_prompt(prompt, self._spec, prompt_param(body))
        root = root_key(self._spec.fingerprint, salt=body.cache_salt or "")
        keys = BlockKeys(root, self._spec.geometry.block_tokens)
        keys.extend(prompt)
        # Thousands of requests may wait here: a list takes nine times as much.
        return array("i", prompt), keys
