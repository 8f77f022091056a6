"""From a client's wishes to `Sampling`, within what the model can do. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dualpath.gateway.errors import ApiError, invalid
from dualpath.gateway.schema import MAX_SCORES, ChatBody, CompletionBody
from dualpath.gateway.structure import grammar_of
from dualpath.gateway.tools import ToolFormat
from dualpath.model.spec import ModelSpec
from dualpath.wire.types import Sampling

DEFAULT_COMPLETION_TOKENS = 16
"""As OpenAI and vLLM have it; a chat may go on to the end of the context."""

_SEED_MASK = (1 << 63) - 1


def prompt_param(body: ChatBody | CompletionBody) -> str:
    return "messages" if isinstance(body, ChatBody) else "prompt"


def check_prompt(prompt: Sequence[int], spec: ModelSpec, param: str) -> None:
    """Raise ApiError(400) for a prompt that no worker must ever see; `param` is where it came from."""
    if not prompt:
        raise invalid("the prompt holds no token; send at least one", param)
    if len(prompt) >= spec.max_context:
        raise _too_long(
            spec, param, f"the prompt has {len(prompt)}, which leaves no room for an answer"
        )
    check_ids(prompt, spec, param)


def check_ids(ids: Sequence[int], spec: ModelSpec, param: str) -> None:
    """Raise ApiError(400) for ids that the model does not have."""
    if ids and (min(ids) < 0 or max(ids) >= spec.vocab_size):
        bad = next(token for token in ids if not 0 <= token < spec.vocab_size)
        raise invalid(
            f"{param} holds token id {bad}; ids of this model are 0 to {spec.vocab_size - 1}", param
        )


def check_scores(body: CompletionBody, prompt_tokens: int) -> None:
    """Raise ApiError(400) where those of all prompts, of so many tokens, are more than MAX_SCORES."""
    if not body.echo or body.logprobs is None:
        return
    count = prompt_tokens * (1 + body.logprobs) * (body.n or 1)
    if count > MAX_SCORES:
        raise invalid(
            f"with echo and logprobs an answer may hold {MAX_SCORES} log-probabilities of prompts, but you asked for "
            f"{count} (prompt tokens × (1 + logprobs) × n); send fewer prompts at a time, or ask for fewer",
            "logprobs",
        )


def choose_sampling(
    body: ChatBody | CompletionBody,
    prompt_tokens: int,
    spec: ModelSpec,
    *,
    drawn_seed: int,
    tools: ToolFormat | None = None,
) -> Sampling:
    """How to sample the first choice for `body`; `drawn_seed` serves where the client gave none, `tools` is
    how the model calls functions.

    Raises ApiError(400) where wishes contradict each other or the context.
    """
    param = prompt_param(body)
    room = spec.max_context - prompt_tokens
    wanted = body.wanted_tokens
    if wanted is None:
        wanted = room if isinstance(body, ChatBody) else min(room, DEFAULT_COMPLETION_TOKENS)
    elif wanted > room:
        raise _too_long(
            spec,
            param,
            f"you asked for {prompt_tokens + wanted} ({prompt_tokens} in the prompt, {wanted} to generate)",
        )
    min_tokens = body.min_tokens or 0
    if min_tokens > wanted:
        raise invalid(
            f"min_tokens is {min_tokens}, but at most {wanted} are generated", "min_tokens"
        )
    stop_ids = body.stop_token_ids or []
    check_ids(stop_ids, spec, "stop_token_ids")
    biases = {int(token): float(bias) for token, bias in (body.logit_bias or {}).items()}
    check_ids(list(biases), spec, "logit_bias")
    eos_ids = () if body.ignore_eos else spec.eos_ids
    top_k = body.top_k or 0
    return Sampling(
        max_tokens=wanted,
        seed=(drawn_seed if body.seed is None else body.seed) & _SEED_MASK,
        min_tokens=min_tokens,
        temperature=1.0 if body.temperature is None else float(body.temperature),
        top_p=1.0 if body.top_p is None else float(body.top_p),
        top_k=max(top_k, 0),
        stop_ids=tuple(dict.fromkeys((*eos_ids, *stop_ids))),
        top_logprobs=body.wanted_logprobs,
        min_p=float(body.min_p or 0),
        presence_penalty=float(body.presence_penalty or 0),
        frequency_penalty=float(body.frequency_penalty or 0),
        repetition_penalty=float(body.repetition_penalty or 1),
        logit_bias=tuple(biases.items()),
        grammar=grammar_of(body, tools),
        prompt_logprobs=isinstance(body, CompletionBody)
        and bool(body.echo)
        and body.logprobs is not None,
    )


def of_choice(sampling: Sampling, index: int) -> Sampling:
    """Each choice has a seed of its own, the first the client's."""
    if index == 0:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + index) & _SEED_MASK)


def _too_long(spec: ModelSpec, param: str, what: str) -> ApiError:
    return invalid(
        f"this model's context is {spec.max_context} tokens, prompt and answer together, but {what}; "
        "shorten the prompt or ask for fewer tokens",
        param,
        "context_length_exceeded",
    )
