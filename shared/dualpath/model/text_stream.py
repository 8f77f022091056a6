"""Generated ids to text, piece by piece."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable

from dualpath.model.text import Tokenizer


class Detokenizer:
    """Text of one growing sequence of generated ids.

    A character that is split over tokens appears once its last byte is there; bytes that are no UTF-8
    become U+FFFD, as they would in the whole sequence at once. Special tokens are left out. What
    `push` and `finish` return, end to end, is the text: a stream equals an answer given at once.
    """

    def __init__(self, tokenizer: Tokenizer, shown: Collection[int] = ()) -> None:
        """`shown` are special tokens that do have text."""
        self._tokenizer = tokenizer
        self._shown = shown
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """Append ids; return the text that is certain now."""
        tokenizer = self._tokenizer
        return self._utf8.decode(
            b"".join(
                tokenizer.token_bytes(token_id)
                for token_id in token_ids
                if token_id in self._shown or not tokenizer.is_special(token_id)
            )
        )

    @property
    def pending(self) -> bool:
        """Whether the text so far ends within a character."""
        return bool(self._utf8.getstate()[0])

    def finish(self) -> str:
        """The sequence has ended: U+FFFD where it ends within a character, else nothing."""
        return self._utf8.decode(b"", final=True)
