from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.cli.agent import ASKED_COLD, TURNS, Turn, appended_tokens, run_agent, tool_output
from dualpath.cli.api_client import ApiClient, Served


class Server:
    """Counts tokens as `tokenize` does, says what a real one says of them, and refuses what is too long."""

    def __init__(
        self,
        max_context: int,
        tokenize: Callable[[str], int],
        answer: str,
        known_tokens: int | None = None,
    ) -> None:
        """`known_tokens`: of an earlier answer, where the session that has it sends it back."""
        self._known_tokens, self._answered = known_tokens, set[str]()
        self.max_context, self._tokenize, self._answer = max_context, tokenize, answer
        self.bodies: list[dict[str, Any]] = []
        self._seen: dict[str, int] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        prompt = sum(self._tokens(message, body["cache_salt"]) + 20 for message in body["messages"])
        if prompt + body["max_completion_tokens"] > self.max_context:
            return httpx.Response(400, json={"error": {"message": f"{prompt} tokens"}})
        cached = self._seen.get(body["cache_salt"], 0)
        self._seen[body["cache_salt"]] = prompt
        self._answered.add(body["cache_salt"])
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        event = {
            "choices": [{"delta": {"content": self._answer}, "finish_reason": "stop"}],
            "usage": usage,
            "dualpath": {"read_path": "decode" if cached else "none"},
        }
        return httpx.Response(200, content=f"data: {json.dumps(event)}\n\n".encode())

    def _tokens(self, message: dict[str, str], salt: str) -> int:
        known = message["role"] == "assistant" and salt in self._answered
        if known and self._known_tokens is not None:
            return self._known_tokens
        return self._tokenize(message["content"])


def run(server: Server) -> list[Turn]:
    turns: list[Turn] = []
    url = "http://127.0.0.1:1/v1"
    with ApiClient(url, transport=httpx.MockTransport(server)) as client:
        run_agent(client, Served("m", server.max_context), "s", turns.append)
    return turns


@pytest.mark.parametrize("max_context", [4096, 8192, 32768])
@pytest.mark.parametrize("letters_per_token", [1, 4])
def test_all_turns_fit_into_the_context(max_context: int, letters_per_token: int) -> None:
    server = Server(max_context, lambda text: -(-len(text) // letters_per_token), "x" * 72)
    turns = run(server)
    assert [turn.number for turn in turns] == list(range(1, TURNS + 1))
    prompts = [turn.answer.prompt_tokens for turn in turns]
    assert prompts == sorted(prompts)
    assert prompts[-1] > min(max_context, 6000) // 2


def test_answers_that_are_longer_in_a_prompt_sent_again_fit_too() -> None:
    server = Server(4096, len, "x" * 72, known_tokens=24)
    assert [turn.number for turn in run(server)] == list(range(1, TURNS + 1))


def test_some_prompts_are_sent_again_without_their_cache() -> None:
    server = Server(32768, len, "an answer")
    turns = run(server)
    assert [turn.number for turn in turns if turn.cold_ttft_s is not None] == [1, *ASKED_COLD]
    again = [body for body in server.bodies if body["cache_salt"] != "s"]
    assert len(again) == len(ASKED_COLD)
    for body in again:
        before = server.bodies[server.bodies.index(body) - 1]
        assert body["messages"] == before["messages"]
    assert len({body["cache_salt"] for body in again}) == len(again)


@given(st.integers(1, TURNS), st.integers(0, 2000))
def test_tool_output_has_the_length_that_was_asked_for(number: int, letters: int) -> None:
    assert len(tool_output(number, letters)) == letters


def test_each_turn_has_another_text() -> None:
    assert len({tool_output(number, 300)[10:] for number in range(1, TURNS + 1)}) == TURNS


def test_a_context_that_is_nearly_full_is_not_overrun() -> None:
    assert appended_tokens(1000, 990, 1) == 1
    assert appended_tokens(None, 10**6, 1) == 400
