"""From a client's JSON to a request that is ready to be served. Nothing here reaches the workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from dualpath.gateway.answers import (
    AnswerFormat,
    ChatFormat,
    CompletionFormat,
    Opening,
    call_id,
)
from dualpath.gateway.body import Posted
from dualpath.gateway.called import Said
from dualpath.gateway.echo import echoed
from dualpath.gateway.errors import ApiError
from dualpath.gateway.flights import Flight
from dualpath.gateway.keys import Tenant
from dualpath.gateway.pieces import AnswerText, Piece, Reading
from dualpath.gateway.prompts import Prompt, Prompts
from dualpath.gateway.replies import Choice
from dualpath.gateway.request import Request
from dualpath.gateway.response_events import ResponseWriter
from dualpath.gateway.responses import (
    Json,
    chat_of,
    head_of,
    items_of,
    messages_of,
    output_items,
    parse_response,
    renamed,
)
from dualpath.gateway.sampling import of_choice
from dualpath.gateway.schema import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
    parse_body,
    parse_plain,
)
from dualpath.gateway.stored import StoredResponses
from dualpath.gateway.tool_parser import ToolParser
from dualpath.model.spec import ModelSpec
from dualpath.settings import Settings

_INLINE_BYTES = 4096
"""Shorter bodies are prepared on the event loop: a thread would cost more."""

_THREADS = 2

T = TypeVar("T")


@dataclass(frozen=True)
class Accepted:
    """A valid request: what to serve, and how to say it."""

    choices: list[Choice]
    form: AnswerFormat
    stream: bool
    include_usage: bool


@dataclass(frozen=True)
class AcceptedResponse:
    """The same for `/v1/responses`; `keep` takes the finished object."""

    accepted: Accepted
    writer: ResponseWriter
    keep: Callable[[Json], None]

    @property
    def choices(self) -> list[Choice]:
        return self.accepted.choices


@dataclass(frozen=True)
class _Prepared:
    body: ChatBody | CompletionBody
    prompts: list[Prompt]
    form: type[AnswerFormat]


class Intake:
    """`close` it. All methods raise ApiError for what is wrong with a body."""

    def __init__(self, settings: Settings, spec: ModelSpec) -> None:
        """Reads the tokenizer and chat template; raises ModelError."""
        self.model = spec.name
        self.max_context = spec.max_context
        self._settings = settings
        self._prompts = Prompts(spec, answer_memory_bytes=settings.answer_memory)
        self.stored = StoredResponses(settings.response_memory)
        self.threads = ThreadPoolExecutor(_THREADS, "text")
        """For what would hold the event loop up."""

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)

    # ── bodies ─────────────────────────────────────────────────────────────────────────────────────
    async def accept_chat(self, posted: Posted, tenant: Tenant, arrived_s: float) -> Accepted:
        def read() -> _Prepared:
            body = parse_body(ChatBody, posted.fields)
            self.check_model(body.model)
            return _Prepared(body, self._prompts.of_chat(body, tenant), ChatFormat)

        return await self._accept(read, posted, tenant, arrived_s)

    async def accept_completion(self, posted: Posted, tenant: Tenant, arrived_s: float) -> Accepted:
        def read() -> _Prepared:
            body = parse_body(CompletionBody, posted.fields)
            self.check_model(body.model)
            return _Prepared(body, self._prompts.of_completion(body, tenant), CompletionFormat)

        return await self._accept(read, posted, tenant, arrived_s)

    async def accept_response(
        self, posted: Posted, tenant: Tenant, arrived_s: float
    ) -> AcceptedResponse:
        body, same = await self._off_loop(partial(parse_response, posted.fields), posted.nbytes)
        messages: list[Json] = []
        if body.previous_response_id is not None:
            messages = self.stored.messages(body.previous_response_id, tenant.salt)

        def read() -> _Prepared:
            messages.extend(messages_of(items_of(body)))
            chat = chat_of(body, same, messages)
            self.check_model(chat.model)
            return _Prepared(chat, self._prompts.of_chat(chat, tenant), ChatFormat)

        try:
            accepted = await self._accept(read, posted, tenant, arrived_s)
        except ApiError as error:
            raise renamed(error) from error
        assert isinstance(accepted.form, ChatFormat)
        head = head_of(body, same, accepted.form, accepted.choices[0].flight.request.sampling)

        def keep(response: Json) -> None:
            if body.store is not False:
                said = messages_of(output_items(response))
                self.stored.put(tenant.salt, [*messages, *said], response)

        return AcceptedResponse(accepted, ResponseWriter(head, accepted.form), keep)

    async def tokenize(self, posted: Posted) -> list[int]:
        """The ids of a TokenizeBody."""

        def read() -> list[int]:
            body = parse_plain(TokenizeBody, posted.fields)
            self.check_model(body.model)
            return self._prompts.tokenize(body)

        return await self._off_loop(read, posted.nbytes)

    async def detokenize(self, posted: Posted) -> str:
        """The text of a DetokenizeBody."""

        def read() -> str:
            body = parse_plain(DetokenizeBody, posted.fields)
            self.check_model(body.model)
            return self._prompts.detokenize(body)

        return await self._off_loop(read, posted.nbytes)

    def check_model(self, name: str | None) -> None:
        """Raises ApiError(404) for any model but the one that is served; None means that one."""
        if name not in (None, self.model):
            raise ApiError(
                404,
                f"the model {name!r} does not exist here; this cluster serves {self.model!r}",
                param="model",
                code="model_not_found",
            )

    async def _off_loop(self, work: Callable[[], T], nbytes: int) -> T:
        if nbytes < _INLINE_BYTES:
            return work()
        # A body of some megabytes takes seconds to be checked: other clients' tokens must not wait for it.
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    # ── what is served ─────────────────────────────────────────────────────────────────────────────
    async def _accept(
        self, read: Callable[[], _Prepared], posted: Posted, tenant: Tenant, arrived_s: float
    ) -> Accepted:
        started_s = time.monotonic()
        got = await self._off_loop(read, posted.nbytes)
        tokenize_s = time.monotonic() - started_s
        body, request_id = got.body, posted.request_id
        each = body.n or 1
        choices = []
        for number in range(len(got.prompts) * each):
            prompt, index = divmod(number, each)
            name = f"{request_id.name}-{number}" if number else request_id.name
            flight = self._flight(body, got.prompts[prompt], index, name, arrived_s)
            flight.request.tenant = tenant.name
            if (own := self._settings.key_limits.get(tenant.name)) is not None:
                flight.request.weight = own.weight
            flight.timings_s["tokenize"] = tokenize_s
            remember = partial(self._remember, got.prompts[prompt], request_id.made)
            choices.append(
                self._choice(body, got.prompts[prompt], number, flight, index > 0, remember)
            )
        form = got.form(
            request_id=request_id.made,
            model=self.model,
            created=int(time.time()),
            tokenizer=self._prompts.tokenizer,
            logprobs=body.wanted_logprobs,
        )
        return Accepted(choices, form, stream=bool(body.stream), include_usage=body.include_usage)

    def _flight(
        self,
        body: ChatBody | CompletionBody,
        prompt: Prompt,
        index: int,
        name: str,
        arrived_s: float,
    ) -> Flight:
        """Of answer number `index` to `prompt`."""
        request = Request(
            name,
            prompt.ids,
            of_choice(prompt.sampling, index),
            prompt.keys.copy(),
            self._settings.max_attempts,
            body.priority or 0,
        )
        most_s = self._settings.request_deadline_s
        asked_s = body.timeout or most_s
        flight = Flight(request, arrived_s, arrived_s + min(asked_s, most_s))
        flight.wished = asked_s < most_s
        flight.timings_s["accept"] = time.monotonic() - arrived_s
        return flight

    def _choice(
        self,
        body: ChatBody | CompletionBody,
        prompt: Prompt,
        number: int,
        flight: Flight,
        again: bool,
        remember: Callable[[Choice], None],
    ) -> Choice:
        """Choice `number` of the request; `again`: another answer to the same prompt."""
        if not again:
            flight.recall = prompt.recall
        return Choice(
            Opening(number, prompt.ids if body.return_token_ids else None, prompt.echo),
            flight,
            AnswerText(
                self._prompts.tokenizer, flight.request.sampling, self._reading(body, prompt)
            ),
            again,
            remember,
            self._echoed(flight.request, prompt) if prompt.sampling.prompt_logprobs else None,
        )

    def _echoed(self, request: Request, prompt: Prompt) -> Callable[[], Piece]:
        return lambda: echoed(prompt.ids, request.scores, self._prompts.tokenizer, prompt.echo)

    def _reading(self, body: ChatBody | CompletionBody, prompt: Prompt) -> Reading:
        stops, form = body.stop or (), self._prompts.tools
        if isinstance(body, CompletionBody) or form is None or not body.offered:
            nothing = isinstance(body, CompletionBody) and body.only_echo
            return Reading(stops, text_before=len(prompt.echo), nothing=nothing)
        one = body.parallel_tool_calls is False
        return Reading(stops, parser=ToolParser(form, one=one), marks=form.marks)

    def _remember(self, prompt: Prompt, name: str, choice: Choice) -> None:
        """So that the client can send the answer back."""
        request, text = choice.flight.request, choice.text
        count, spoken = text.spoken()
        ids = [token.token_id for token in request.generated[:count]]
        first_call = call_id(name, choice.opening.index, 0)
        self._prompts.remember(prompt, spoken, ids)
        if text.calls:
            said = Said(text.shown, tuple(text.calls), spoken)
            self._prompts.called.remember(prompt.salt, first_call, said)
