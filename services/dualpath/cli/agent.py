"""The scripted agent of `dualpath demo`: turns on one growing context, as tools answer it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle

from dualpath.cli.api_client import Answer, ApiClient, Message, Served

TURNS = 12
ANSWER_TOKENS = 24
ASKED_COLD = (4, 7, 9, 12)
"""Turns whose prompt is sent a second time without KV-Cache, two of each parity, as idle nodes read in turn. Not
all: each costs a whole prefill."""
_APPENDED_TOKENS = 400
_TEMPLATE_TOKENS = 40
"""Room for what a chat template adds to each pair of messages."""
_ANSWER_AGAIN = 3 * ANSWER_TOKENS
"""An answer's text can have more tokens than it was sampled with: bytes that are no text come back as U+FFFD."""
_SPARE_TOKENS = 64

_SYSTEM = (
    "You are an agent that looks after a storage cluster. You are given the output of one tool after the "
    "other. After each, say in one sentence what you see and what to look at next."
)
_PARTS = ("disk", "controller", "link", "cable", "fan", "cache", "journal", "volume", "mirror")
_STATES = ("is healthy", "was replaced", "reports a late reply", "is being rebuilt", "is idle")


@dataclass(frozen=True)
class Turn:
    """`answer` is the agent's. `cold_ttft_s`, where measured: the time to the first token of the very same prompt
    when none of it had KV-Cache."""

    number: int
    answer: Answer
    cold_ttft_s: float | None


def run_agent(
    client: ApiClient, served: Served, session: str, on_turn: Callable[[Turn], None]
) -> None:
    """All turns, one after the other; `on_turn` gets each when it has ended. The KV-Cache is shared with nobody
    but the holder of the same `session`. Raises ApiProblem."""
    messages: list[Message] = [{"role": "system", "content": _SYSTEM}]
    # A tokenizer of bytes at worst; known better after the first turn.
    letters_per_token, used_tokens = 1.0, len(_SYSTEM)
    for number in range(1, TURNS + 1):
        appended = appended_tokens(served.max_context, used_tokens, TURNS - number + 1)
        text = tool_output(number, int(appended * letters_per_token))
        messages.append({"role": "user", "content": text})
        answer = _ask(client, served, messages, session, ANSWER_TOKENS)
        cold_ttft_s = None if answer.cached_tokens else answer.ttft_s
        if answer.cached_tokens and number in ASKED_COLD:
            cold_ttft_s = _ask(client, served, messages, f"{session}-{number}", 1).ttft_s
        letters = sum(len(message["content"]) for message in messages)
        letters_per_token = max(1.0, letters / max(answer.prompt_tokens, 1))
        # Of its own session the gateway knows the ids of answers; in the prompt sent again they are tokenized anew.
        used_tokens = answer.prompt_tokens + (number - 1) * (_ANSWER_AGAIN - ANSWER_TOKENS)
        messages.append({"role": "assistant", "content": answer.text or "I see nothing."})
        on_turn(Turn(number, answer, cold_ttft_s))


def _ask(
    client: ApiClient, served: Served, messages: list[Message], salt: str, tokens: int
) -> Answer:
    return client.chat(
        served.model,
        messages,
        lambda _: None,
        max_completion_tokens=tokens,
        temperature=0,
        cache_salt=salt,
    )


def appended_tokens(max_context: int | None, used: int, turns: int) -> int:
    """How much a turn appends to a prompt of `used` tokens, so that it and all `turns` that are left fit."""
    if max_context is None:
        return _APPENDED_TOKENS
    room = (max_context - used - _SPARE_TOKENS) // turns - _ANSWER_AGAIN - _TEMPLATE_TOKENS
    return max(1, min(_APPENDED_TOKENS, room))


def tool_output(number: int, letters: int) -> str:
    """About so many letters, different in each turn, the same in each run.

    >>> tool_output(3, 30)
    'Tool 3 says: disk 300 is healt'
    """
    return "".join(_pieces(number, letters))[:letters]


def _pieces(number: int, letters: int) -> Iterator[str]:
    text = f"Tool {number} says: "
    yield text
    written = len(text)
    states = cycle(_STATES)
    for line, part in zip(count(), cycle(_PARTS)):
        if written >= letters:
            return
        piece = f"{part} {number * 100 + line} {next(states)}. "
        yield piece
        written += len(piece)
