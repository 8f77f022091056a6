"""From a checked body to prompts: text, ids, keys of blocks. Knows the model's text side and its limits."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dualpath.blocks import BlockKeys, root_key
from dualpath.gateway.called import Called
from dualpath.gateway.emitted import Emitted, Recall, prompt_key
from dualpath.gateway.errors import invalid
from dualpath.gateway.keys import Tenant
from dualpath.gateway.messages import ChatMessage, Tool
from dualpath.gateway.sampling import (
    check_ids,
    check_prompt,
    check_scores,
    choose_sampling,
    prompt_param,
)
from dualpath.gateway.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from dualpath.gateway.tools import HERMES, ToolCall, format_of
from dualpath.model.errors import ModelError
from dualpath.model.spec import ModelSpec
from dualpath.model.text import Tokenizer
from dualpath.model.text_chat import ChatError, ChatTemplate
from dualpath.wire.types import Sampling


@dataclass(frozen=True)
class Prompt:
    """`echo` is what the client wants back of it; `name` is a chat's in the memory of answers."""

    ids: Sequence[int]
    keys: BlockKeys
    sampling: Sampling
    salt: str = ""
    echo: str = ""
    name: bytes | None = None
    recall: Recall = Recall()  # noqa: RUF009 - frozen


class Prompts:
    """Every method may run in any thread, and raises ApiError(400) for what the model cannot take."""

    def __init__(self, spec: ModelSpec, *, answer_memory_bytes: int) -> None:
        """Reads the tokenizer and chat template; raises ModelError."""
        if spec.directory is None:
            raise ModelError(f"model {spec.name} has no directory to read a tokenizer from")
        self.tokenizer = Tokenizer.load(spec.directory)
        self._spec = spec
        self._template = ChatTemplate.load(spec.directory)
        self.tools = format_of(self._template.source) if self._template is not None else None
        """How the model calls functions; None: it does not."""
        opening = self._template.opening() if self._template is not None else ""
        self.called = Called()
        self.emitted: Emitted | None = None
        """Earlier answers; None where a prompt cannot be put together of parts."""
        if opening and self.tokenizer.splits:
            self.emitted = Emitted(opening, answer_memory_bytes)

    def of_chat(self, body: ChatBody, tenant: Tenant) -> list[Prompt]:
        salt = _salt(tenant, body.cache_salt)
        messages = [self._message(message, salt) for message in body.messages]
        text = self._render(messages, body.offered)
        if self.emitted is None:
            return [self._prompt(body, self._encode(text, Recall()), salt)]
        recall = self.emitted.recall(text, salt)
        prompt = self._prompt(body, self._encode(text, recall), salt)
        return [replace(prompt, name=prompt_key(text, salt), recall=recall)]

    def of_completion(self, body: CompletionBody, tenant: Tenant) -> list[Prompt]:
        salt = _salt(tenant, body.cache_salt)
        prompts = [self._completion_prompt(body, given, salt) for given in body.prompt]
        check_scores(body, sum(len(prompt.ids) for prompt in prompts))
        return prompts

    def _completion_prompt(self, body: CompletionBody, given: str | list[int], salt: str) -> Prompt:
        if isinstance(given, str):
            ids = self.tokenizer.encode(given, add_special_tokens=True)
            return replace(self._prompt(body, ids, salt), echo=given if body.echo else "")
        prompt = self._prompt(body, given, salt)
        # Only now is it known that there are such tokens.
        return replace(prompt, echo=self.tokenizer.decode(given)) if body.echo else prompt

    def tokenize(self, body: TokenizeBody) -> list[int]:
        if body.messages is None:
            special = body.add_special_tokens is not False
            return self.tokenizer.encode(body.prompt or "", add_special_tokens=special)
        asked = body.add_generation_prompt is not False
        messages = [message.for_template() for message in body.messages]
        return self._encode(self._render(messages, add_generation_prompt=asked), Recall())

    def detokenize(self, body: DetokenizeBody) -> str:
        check_ids(body.tokens, self._spec, "tokens")
        return self.tokenizer.decode(body.tokens)

    def _render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[Tool] = (),
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        if self._template is None:
            raise invalid(
                f"the model {self._spec.name} has no chat template; use /v1/completions",
                code="no_chat_template",
            )
        try:
            return self._template.render(
                messages,
                tools=[tool.for_template() for tool in tools],
                add_generation_prompt=add_generation_prompt,
            )
        except ChatError as error:
            raise invalid(str(error), "messages", "invalid_value") from error

    def remember(self, prompt: Prompt, text: str, ids: Sequence[int]) -> None:
        """`text`, generated as `ids`, answered the chat of `prompt`."""
        if self.emitted is not None and prompt.name is not None:
            self.emitted.remember(prompt.name, text, ids)

    def _message(self, message: ChatMessage, salt: str) -> dict[str, Any]:
        """As the template gets it: calls as the model wrote them, where that is known and the template would."""
        if message.tool_calls and self.tools is HERMES:
            made = [ToolCall(c.function.name, c.function.arguments) for c in message.tool_calls]
            first = message.tool_calls[0].id
            raw = self.called.recall(salt, first, message.content or "", made)
            if raw is not None:
                return {"role": "assistant", "content": raw}
        return message.for_template()

    def _encode(self, text: str, recall: Recall) -> list[int]:
        """The ids of a chat, of its earlier answers those that were generated. Special tokens are in its template."""
        edges = [0, *(edge for known in recall.known for edge in (known.start, known.stop))]
        between = [text[a:b] for a, b in zip(edges[::2], [*edges[1::2], None], strict=True)]
        ids, *others = self.tokenizer.encode_parts(between)
        for known, part in zip(recall.known, others, strict=True):
            ids += known.ids
            ids += part
        return ids

    def _prompt(self, body: ChatBody | CompletionBody, ids: list[int], salt: str) -> Prompt:
        check_prompt(ids, self._spec, prompt_param(body))
        sampling = choose_sampling(
            body, len(ids), self._spec, drawn_seed=secrets.randbits(63), tools=self.tools
        )
        keys = BlockKeys(
            root_key(self._spec.fingerprint, salt=salt), self._spec.geometry.block_tokens
        )
        keys.extend(ids)
        # Thousands of requests may wait here: a list takes nine times as much.
        return Prompt(array("i", ids), keys, sampling, salt)


def _salt(tenant: Tenant, wished: str | None) -> str:
    """Two tenants never share a salt, whatever they wish."""
    return f"{tenant.salt}:{wished or ''}" if tenant.salt else wished or ""
