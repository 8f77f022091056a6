"""What a server is and takes, found out with a few small requests before a replay."""

from __future__ import annotations

from typing import Any

from dualpath.loadgen.replay.contexts import Dialect
from dualpath.loadgen.replay.errors import ReplayError, TurnError
from dualpath.loadgen.replay.options import Target
from dualpath.loadgen.replay.pool import Pool
from dualpath.loadgen.replay.stream import said_of
from dualpath.loadgen.traces.content import WORDS
from dualpath.loadgen.traces.model import Trace

_FEW_WORDS, _MANY_WORDS = 16, 272


async def probe(pool: Pool, target: Target, trace: Trace) -> Dialect:
    """Raises ReplayError where the replay could not work."""
    try:
        model = target.model or await _first_model(pool)
        recorded = any(turn.messages for t in trace.trajectories for turn in t.turns)
        prompts, refusal = target.prompts, ""
        if recorded:
            if prompts not in ("auto", "chat"):
                raise ReplayError(
                    f"recorded conversations are chats and cannot be sent as {prompts}"
                )
            return Dialect("chat", model, target.vocab)
        if prompts in ("auto", "ids"):
            refusal = await _refuses_ids(pool, model, target.vocab)
            if not refusal:
                return Dialect("ids", model, target.vocab)
            if prompts == "ids":
                raise ReplayError(
                    f"{pool.base} does not take prompts of token ids, or does not return "
                    f"generated ones: {refusal}; try another range of ids (vocab), or text"
                )
            prompts = "chat"
        if any(turn.blocks for t in trace.trajectories for turn in t.turns):
            raise ReplayError(
                "blocks of hash ids can only be sent as token ids, which this server does not take"
                + (f": {refusal}" if refusal else "; leave --prompts out, or say ids")
            )
        return Dialect(
            prompts, model, target.vocab, await _words_per_token(pool, model, prompts == "chat")
        )
    except TurnError as error:
        if error.kind == "connect":
            raise ReplayError(f"{error.detail}; start the server, or give its --url") from error
        raise ReplayError(f"{pool.base}: {error.detail}") from error


async def _first_model(pool: Pool) -> str:
    status, answer = await pool.json("GET", "/models")
    try:
        return str(answer["data"][0]["id"])
    except (TypeError, LookupError) as error:
        raise ReplayError(
            f"{pool.base}/models did not list a model (status {status}: {_said(answer)}); "
            "give the address that ends in /v1, and a key where one is needed"
        ) from error


async def _refuses_ids(pool: Pool, model: str, vocab: tuple[int, int]) -> str:
    """Why this server does not speak token ids; empty if it does."""
    low, high = vocab
    fields = {
        "model": model,
        "prompt": [low, high - 1],
        "max_tokens": 1,
        "temperature": 0,
        "return_token_ids": True,
    }
    status, answer = await pool.json("POST", "/completions", fields)
    if status != 200:
        return f"status {status}, {_said(answer)}"
    try:
        ids = answer["choices"][0].get("token_ids")
    except (TypeError, LookupError, AttributeError):
        ids = None
    return "" if isinstance(ids, list) and ids else "there are no token_ids in its answer"


async def _words_per_token(pool: Pool, model: str, chat: bool) -> float:
    """From two prompts' lengths as the server counts them, so that a template's own tokens cancel out."""
    few, many = [
        await _prompt_tokens(pool, model, count, chat) for count in (_FEW_WORDS, _MANY_WORDS)
    ]
    if many <= few:
        raise ReplayError(
            f"{pool.base} counts {few} and {many} prompt tokens for {_FEW_WORDS} and "
            f"{_MANY_WORDS} words: lengths of prompts cannot be chosen so"
        )
    return (_MANY_WORDS - _FEW_WORDS) / (many - few)


async def _prompt_tokens(pool: Pool, model: str, words: int, chat: bool) -> int:
    text = " ".join(WORDS[number % len(WORDS)] for number in range(words))
    fields: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0}
    if chat:
        fields["messages"] = [{"role": "user", "content": text}]
    else:
        fields["prompt"] = text
    status, answer = await pool.json(
        "POST", "/chat/completions" if chat else "/completions", fields
    )
    try:
        return int(answer["usage"]["prompt_tokens"])
    except (TypeError, LookupError, ValueError) as error:
        raise ReplayError(
            f"{pool.base} did not answer a prompt of {words} words with its length in tokens "
            f"(status {status}: {_said(answer)})"
        ) from error


def _said(answer: Any) -> str:
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    return said_of(error) if error is not None else "no JSON"
