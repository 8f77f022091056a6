"""Output that must follow a grammar: which tokens may come next. llguidance does the work.

A state is made of the grammar and the ids so far, so any worker can take a request over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from dualpath.model.errors import ModelError

MAX_GRAMMAR_BYTES = 64 * 1024
"""It travels with its request."""

_COMPACT: dict[str, Any] = {"whitespace_flexible": False}
"""Small models fill answers with blanks where they may."""


class GrammarError(ValueError):
    """No grammar, or one that cannot be enforced; the text says why."""


def json_grammar(schema: dict[str, Any]) -> str:
    """The grammar of JSON that fits `schema`, without blanks but one after `,` and `:`. Raises GrammarError where it
    cannot be enforced."""
    return checked(LLMatcher.grammar_from_json_schema(schema, overrides=_COMPACT))  # type: ignore[arg-type]


def checked(grammar: str) -> str:
    """`grammar`, in llguidance's JSON or its Lark dialect. Raises GrammarError."""
    if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"it is longer than {MAX_GRAMMAR_BYTES} bytes")
    if problem := LLMatcher.validate_grammar(grammar):
        raise GrammarError(problem.splitlines()[0])
    _check_start(grammar)
    return grammar


_BYTES = LLTokenizer("byte")
_FIRST = 16
"""First bytes that are tried before a grammar is taken for one that cannot begin."""


def _check_start(grammar: str) -> None:
    """Some grammars are well-formed and yet have no sentence, such as a schema that requires itself: found out as the
    first bytes are looked for, which exceeds the parser's limits or allows none. Raises GrammarError."""
    matcher = LLMatcher(_BYTES, grammar, log_level=0)
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    first = np.flatnonzero(np.unpackbits(bits, bitorder="little"))[:_FIRST]
    if matcher.is_error() or not any(matcher.deep_copy().consume_token(int(i)) for i in first):
        raise GrammarError("nothing can fit it: does it require itself within itself?")


class GrammarState:
    """Where one output is in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def append(self, token_id: int) -> None:
        """A token was generated. Raises ModelError for one that was not allowed."""
        if not self._matcher.consume_token(token_id):
            raise ModelError(f"token {token_id} does not follow the request's grammar")

    def allowed(self, size: int) -> NDArray[np.bool_]:
        """Of ids [0, size), which may come next. Raises ModelError where the grammar's limits are exceeded."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise ModelError(f"the request's grammar failed: {self._matcher.get_error()[:200]}")
        mask = np.zeros(size, np.bool_)
        found = np.unpackbits(bits, count=min(size, 8 * len(bits)), bitorder="little")
        mask[: len(found)] = found
        return mask


class Grammars:
    """Knows the vocabulary of the model in `directory`, once it is asked for. May be used by several threads."""

    def __init__(self, directory: Path, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._file = directory / "tokenizer.json"
        self._vocab_size, self._eos_ids = vocab_size, list(eos_ids)
        self._lock = Lock()
        self._tokenizer: LLTokenizer | None = None

    def start(self, grammar: str, generated: Iterable[int] = ()) -> GrammarState:
        """The state after `generated`. Takes up to a second; raises ModelError."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._load()
        state = GrammarState(LLMatcher(self._tokenizer, grammar, log_level=0))
        for token_id in generated:
            state.append(token_id)
        return state

    def _load(self) -> LLTokenizer:
        try:
            definition = json.loads(self._file.read_text("utf-8"))
            definition["truncation"] = definition["padding"] = None
            return LLTokenizer(
                json.dumps(definition), n_vocab=self._vocab_size, eos_token=self._eos_ids
            )
        except (OSError, ValueError) as error:
            raise ModelError(f"{self._file} cannot be used for grammars: {error}") from error
