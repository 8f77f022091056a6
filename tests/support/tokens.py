"""Answers of whole clusters, token by token, beside those of plain `transformers` on the same checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from openai import OpenAI
from tests.support.cluster import LocalCluster
from tests.support.reference import reference_greedy, reference_logprobs, smallest_gap

from dualpath.gateway.pieces import AnswerText
from dualpath.model.text import Tokenizer
from dualpath.model.text_chat import ChatTemplate
from dualpath.wire.types import Sampled, Sampling

NEW = 64
"""Tokens of an answer."""
BLOCK = 64
"""Tokens of a block."""
NEAR_TIE = 1e-3
"""Where the two best logits are closer than this, roundings decide, and nothing can be compared."""

Messages = list[dict[str, str]]


class Reference:
    """A checkpoint directory, and what `transformers` makes of it: the only source of expectations here."""

    def __init__(self, directory: Path, draw: Callable[[int, int], list[int]]) -> None:
        """`draw(tokens, number)` makes up a prompt of so many tokens; other numbers, other first tokens."""
        self.directory = directory
        self._draw = draw
        self._drawn = 0

    @cached_property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((self.directory / "config.json").read_text())
        return config

    @cached_property
    def block_bytes(self) -> int:
        """Of a Full Block in float32."""
        config = self.config
        if "kv_lora_rank" in config:
            row = (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * 4
        else:
            width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
            row = 2 * config["num_key_value_heads"] * width * 4
        return int(config["num_hidden_layers"] * BLOCK * row)

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.directory, local_files_only=True)

    @property
    def eos(self) -> int:
        return int(self._tokenizer.eos_token_id)

    def render(self, messages: Messages) -> list[int]:
        """A conversation's prompt."""
        ids = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return list(ids)

    def greedy(self, ids: Sequence[int], *, eos: bool = False) -> list[int]:
        """The answer to a prompt; with `eos` it may end before `NEW` tokens."""
        return reference_greedy(self.directory, ids, NEW, self._stops(eos))

    def logprobs(self, ids: Sequence[int]) -> list[list[float]]:
        """Of every token of the vocabulary, after each of `ids` but the last."""
        return reference_logprobs(self.directory, ids)

    def clear(self, ids: Sequence[int], *, eos: bool = False) -> bool:
        """Whether no token of the answer is a near-tie."""
        return smallest_gap(self.directory, ids, NEW, self._stops(eos)) >= NEAR_TIE

    def _stops(self, eos: bool) -> tuple[int, ...]:
        return (self.eos,) if eos else ()

    def prompts(self, lengths: Iterable[int]) -> list[list[int]]:
        """Prompts of so many tokens, without near-ties in their answers. No two prompts of this object begin
        with the same block."""
        return [self.prompt(length) for length in lengths]

    def prompt(self, tokens: int, after: Sequence[int] = ()) -> list[int]:
        """One of them: `after`, and `tokens` tokens more."""
        for _ in range(20):
            self._drawn += 1
            ids = [*after, *self._draw(tokens, self._drawn)]
            assert len(ids) == len(after) + tokens
            if self.clear(ids):
                return ids
        raise AssertionError(f"20 prompts of {tokens} tokens, and near-ties in all their answers")


@dataclass(frozen=True)
class Answer:
    prompt_ids: list[int]
    ids: list[int]
    text: str
    finish: str
    cached_tokens: int
    read_path: str
    hit_tokens: int
    prefill_bytes: int
    decode_bytes: int


class Served:
    """A cluster that serves a reference's checkpoint, asked with OpenAI's client.

    It remembers what it was asked, so it knows which blocks must be stored: see `stored_tokens`.
    """

    def __init__(self, cluster: LocalCluster, reference: Reference, read_path: str) -> None:
        """`read_path` is the setting that the cluster was started with."""
        self.cluster = cluster
        self.reference = reference
        self.read_path = read_path
        self._client = OpenAI(
            base_url=cluster.base_url,
            api_key="none",
            max_retries=0,
            default_headers={"X-DualPath-Explain": "1"},
        )
        self._stored: set[tuple[int, ...]] = set()

    def complete(self, prompt: Sequence[int]) -> Answer:
        """Exactly `NEW` tokens."""
        answer = self._client.completions.create(
            model=self.cluster.model,
            prompt=list(prompt),
            max_tokens=NEW,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        ).model_dump()
        return self._answer(answer, answer["choices"][0]["text"], answer["choices"][0])

    def chat(self, messages: Messages, *, eos: bool) -> Answer:
        answer = self._client.chat.completions.create(
            model=self.cluster.model,
            messages=messages,  # type: ignore[arg-type]
            max_tokens=NEW,
            temperature=0,
            extra_body={"ignore_eos": not eos, "return_token_ids": True},
        ).model_dump()
        return self._answer(answer, answer["choices"][0]["message"]["content"], answer)

    def echo(self, prompts: Sequence[Sequence[int]], **wishes: Any) -> dict[str, Any]:
        """The prompts back, with log-probabilities and two alternatives a token."""
        answer: dict[str, Any] = self._client.completions.create(
            model=self.cluster.model,
            prompt=[list(prompt) for prompt in prompts],
            temperature=0,
            logprobs=2,
            echo=True,
            extra_body={"ignore_eos": True},
            **wishes,
        ).model_dump()
        return answer

    def _answer(self, body: dict[str, Any], text: str, prompt_holder: dict[str, Any]) -> Answer:
        choice, explained = body["choices"][0], body["dualpath"]
        answer = Answer(
            prompt_holder["prompt_token_ids"],
            choice["token_ids"],
            text,
            choice["finish_reason"],
            body["usage"]["prompt_tokens_details"]["cached_tokens"],
            explained["read_path"],
            explained["hit_tokens"],
            explained["bytes_read"]["prefill"],
            explained["bytes_read"]["decode"],
        )
        self._remember(answer)
        return answer

    def _remember(self, answer: Answer) -> None:
        # The last token was sampled, and never went through the model.
        sequence = [*answer.prompt_ids, *answer.ids[:-1]]
        for end in range(BLOCK, len(sequence) + 1, BLOCK):
            self._stored.add(tuple(sequence[:end]))

    def streamed(self, prompt: Sequence[int]) -> list[int]:
        """The ids of the parts of a stream."""
        parts = self._client.completions.create(
            model=self.cluster.model,
            prompt=list(prompt),
            max_tokens=NEW,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        bodies = [part.model_dump() for part in parts]
        return [token for body in bodies for c in body["choices"] for token in c["token_ids"]]

    def complete_at_once(self, prompts: Sequence[Sequence[int]]) -> list[Answer]:
        """All of them, at the same time."""
        with ThreadPoolExecutor(len(prompts)) as threads:
            return list(threads.map(self.complete, prompts))

    def stored_tokens(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt must be hits, from what was asked before."""
        end = BLOCK
        # The last token of a prompt is computed, always.
        while end < len(prompt) and tuple(prompt[:end]) in self._stored:
            end += BLOCK
        return end - BLOCK

    def forwards(self) -> int:
        """Prefill forwards so far."""
        status = self.cluster.status().cluster
        assert status is not None
        return sum(
            node.status.counters["forwards"] for node in status.nodes if node.role == "prefill"
        )

    # ── what must hold ─────────────────────────────────────────────────────────────────────────────
    def check(self, prompt: Sequence[int], answer: Answer, *, hits: int) -> None:
        """The answer is `transformers`', and `hits` tokens of the prompt were read as the read path says."""
        assert answer.prompt_ids == list(prompt)
        assert answer.ids == self.reference.greedy(prompt)
        assert answer.finish == "length"
        self.check_reads(answer, hits)

    def check_reads(self, answer: Answer, hits: int) -> None:
        got = (answer.hit_tokens, answer.cached_tokens)
        assert got == (hits, hits), f"other hits:\n{self.cluster.output()[-4000:]}"
        blocks, size = hits // BLOCK, self.reference.block_bytes
        sides = (answer.prefill_bytes // size, answer.decode_bytes // size)
        assert (answer.prefill_bytes, answer.decode_bytes) == (sides[0] * size, sides[1] * size)
        assert answer.read_path == _path(*sides)
        match self.read_path:
            case "prefill":
                assert sides == (blocks, 0)
            case "decode":
                assert sides == (0, blocks)
            case "halves":
                assert sides in {(blocks // 2, blocks - blocks // 2)} | {
                    (blocks - blocks // 2, blocks // 2)
                }
            case _:
                assert sum(sides) == blocks

    def ask(self, prompt: Sequence[int]) -> Answer:
        """Ask alone, and check everything."""
        hits = self.stored_tokens(prompt)
        answer = self.complete(prompt)
        self.check(prompt, answer, hits=hits)
        return answer

    def converse(self, turns: Sequence[str], *, eos: bool) -> None:
        """A conversation: each turn adds the answer before and a new text. With `eos`, answers end where the
        model ends them. Every prompt, answer and number of cached tokens is checked."""
        messages: Messages = []
        before = -1
        said = Said(self.reference.directory, self.reference.eos if eos else None)
        for turn in turns:
            message, ids = self._clear_turn(messages, turn, eos, said)
            messages.append(message)
            hits = self.stored_tokens(ids)
            assert hits >= before
            before = hits
            answer = self.chat(messages, eos=eos)
            assert answer.prompt_ids == ids
            assert answer.ids == self.reference.greedy(ids, eos=eos)
            ended = eos and answer.ids[-1] == self.reference.eos
            assert answer.finish == ("stop" if ended else "length")
            self.check_reads(answer, hits)
            said.note(messages, ids, answer.ids)
            messages.append({"role": "assistant", "content": answer.text})
        assert before > 0

    def _clear_turn(
        self, messages: Messages, turn: str, eos: bool, said: Said
    ) -> tuple[dict[str, str], list[int]]:
        """The turn in words whose answer has no near-tie, and the prompt that it makes."""
        for wording in ("{}", "{} Be brief.", "And now: {}", "Please tell me. {}", "{} Why?"):
            message = {"role": "user", "content": wording.format(turn)}
            ids = said.render([*messages, message])
            if self.reference.clear(ids, eos=eos):
                return message, ids
        raise AssertionError(f"near-ties in all answers to {turn!r}")


class Said:
    """A conversation's ids: each prompt is the one before, what was generated, and the tokenized rest."""

    def __init__(self, directory: Path, eos: int | None) -> None:
        template = ChatTemplate.load(directory)
        assert template is not None
        self._template, self._tokenizer = template, Tokenizer.load(directory)
        self._stop_ids = () if eos is None else (eos,)
        self._text, self._ids = "", list[int]()
        """Of which the next prompt begins with."""

    def render(self, messages: Messages) -> list[int]:
        text = self._template.render(messages)
        assert text.startswith(self._text)
        rest = text[len(self._text) :]
        return self._ids + self._tokenizer.encode(rest, add_special_tokens=False)

    def note(self, messages: Messages, prompt: list[int], answer: list[int]) -> None:
        """`answer` was generated after `prompt`, which is that of `messages`."""
        sampling = Sampling(max_tokens=len(answer), seed=0, stop_ids=self._stop_ids)
        text = AnswerText(self._tokenizer, sampling)
        text.add([Sampled(token) for token in answer], last=True)
        count, shown = text.spoken()
        self._text = self._template.render(messages) + shown
        self._ids = prompt + answer[:count]


def _path(prefill_blocks: int, decode_blocks: int) -> str:
    if prefill_blocks and decode_blocks:
        return "split"
    if prefill_blocks or decode_blocks:
        return "prefill" if prefill_blocks else "decode"
    return "none"
