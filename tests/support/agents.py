"""Agents that talk to a cluster of synthetic engines in turns, and the answers that a right cluster gives."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from dualpath.model.spec import ModelSpec
from dualpath.model.synthetic_kv import reference_tokens
from dualpath.wire.types import Sampling


@dataclass(frozen=True)
class Reply:
    """A request and all that its answer says; `explain` is the answer's `dualpath` object."""

    prompt: tuple[int, ...]
    sampling: Sampling
    tokens: tuple[int, ...]
    finish: str
    prompt_tokens: int
    cached_tokens: int
    explain: dict[str, Any]

    @property
    def read_path(self) -> str:
        path: str = self.explain["read_path"]
        return path

    @property
    def bytes_read(self) -> tuple[int, int]:
        """By the prefill side, and by the decode side."""
        sides = self.explain["bytes_read"]
        return sides["prefill"], sides["decode"]

    def right_tokens(self, spec: ModelSpec) -> tuple[int, ...]:
        return tuple(reference_tokens(spec, self.prompt, self.sampling.max_tokens, self.sampling))


class Client:
    """Sends prompts as token ids to one gateway. Use as an async context manager."""

    def __init__(self, base_url: str, model: str, *, timeout_s: float = 120.0) -> None:
        self._http = httpx.AsyncClient(base_url=base_url, timeout=timeout_s)
        self._model = model

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(
        self, prompt: Sequence[int], sampling: Sampling, *, stream: bool = False
    ) -> Reply:
        """Raises AssertionError with what the gateway said where there is no whole answer."""
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "ignore_eos": not sampling.stop_ids,
            "return_token_ids": True,
        }
        headers = {"X-DualPath-Explain": "1"}
        if stream:
            answer = await self._stream(body, headers)
        else:
            response = await self._http.post("/completions", json=body, headers=headers)
            assert response.status_code == 200, response.text
            answer = response.json()
        choice, usage = answer["choices"][0], answer["usage"]
        assert choice["finish_reason"] is not None
        assert usage["completion_tokens"] == len(choice["token_ids"])
        return Reply(
            tuple(prompt),
            sampling,
            tuple(choice["token_ids"]),
            choice["finish_reason"],
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            answer["dualpath"],
        )

    async def _stream(self, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        """The stream's chunks put together as one answer."""
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        whole: dict[str, Any] = {"choices": [{"token_ids": [], "finish_reason": None}]}
        async with self._http.stream("POST", "/completions", json=body, headers=headers) as lines:
            assert lines.status_code == 200, await lines.aread()
            async for line in lines.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                for choice in chunk["choices"]:
                    whole["choices"][0]["token_ids"] += choice.get("token_ids") or []
                    whole["choices"][0]["finish_reason"] = choice["finish_reason"]
                whole |= {name: chunk[name] for name in ("usage", "dualpath") if chunk.get(name)}
        return whole


class Agent:
    """A conversation: each turn's prompt is everything before it, and something new.

    Every fourth prompt is cut or filled to end just before, at, or just after a block's end.
    """

    def __init__(
        self, number: int, opening: Sequence[int], block_tokens: int, answers: Sequence[int]
    ) -> None:
        self._random = random.Random(number)
        self._block_tokens = block_tokens
        self._answers = answers
        self._context = list(opening)
        self._number = number

    async def talk(self, client: Client, turns: int) -> list[Reply]:
        replies: list[Reply] = []
        for turn in range(turns):
            prompt = self._prompt(turn)
            reply = await client.ask(
                prompt, self._sampling(), stream=bool((turn + self._number) % 2)
            )
            self._context = [*prompt, *reply.tokens]
            replies.append(reply)
        return replies

    def _prompt(self, turn: int) -> list[int]:
        prompt = [*self._context, *random_ids(self._random, self._random.randrange(1, 160))]
        if (turn + self._number) % 4 == 0:
            end = -(-len(prompt) // self._block_tokens) * self._block_tokens
            end += self._random.choice((-1, 0, 1))
            prompt += random_ids(self._random, max(end - len(prompt), 0))
            del prompt[end:]
        return prompt

    def _sampling(self) -> Sampling:
        greedy = self._random.random() < 0.5
        return Sampling(
            max_tokens=self._random.choice(self._answers),
            seed=self._random.randrange(1 << 32),
            temperature=0.0 if greedy else 0.8,
        )


def random_ids(source: random.Random, n: int) -> list[int]:
    """Ids that are no special tokens."""
    return [source.randrange(300, 30_000) for _ in range(n)]


async def talk_all(
    client: Client,
    *,
    agents: int,
    turns: int,
    block_tokens: int = 64,
    answers: Sequence[int] = (1, 2, 7, 20, 30),
) -> list[list[Reply]]:
    """All agents at once, each in its turns: replies by agent. Two and two begin with the same words; openings
    have up to 700 tokens, answers one of the lengths in `answers`. Agents of the same number always say the
    same to the same answers."""
    talks = []
    for number in range(agents):
        pair = random.Random(10_000 + number // 2)
        opening = random_ids(pair, pair.randrange(1, 700))
        talks.append(Agent(number, opening, block_tokens, answers).talk(client, turns))
    return await asyncio.gather(*talks)
