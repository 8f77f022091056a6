"""Text to token ids and back: a model's `tokenizer.json`, without transformers.

Ids are those of `transformers`; a chat is rendered by `dualpath.model.text_chat`, a stream of generated
ids becomes text in `dualpath.model.text_stream`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from dualpath.model.bytelevel import byte_alphabet
from dualpath.model.errors import ModelError

_PROBE = "A é\n"

_BYTE_OF = {visible: byte for byte, visible in enumerate(byte_alphabet())}


class Tokenizer:
    """A model's vocabulary. Safe to use from several threads at once; create with `load`."""

    def __init__(self, core: tokenizers.Tokenizer) -> None:
        core.no_truncation()
        core.no_padding()
        self._core = core
        self._added = core.get_added_tokens_decoder()
        self._byte_level = _is_byte_level(core)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Read `directory/tokenizer.json`. Raises ModelError where it is missing, broken or of a kind whose
        tokens are no pieces of UTF-8 text."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelError(
                f"no tokenizer.json in {directory}; save the model's fast tokenizer there "
                "(`AutoTokenizer.from_pretrained(…).save_pretrained(…)`)"
            )
        try:
            core = tokenizers.Tokenizer.from_file(str(path))
        # The library raises plain Exception.
        except Exception as error:
            raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
        return cls(core)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of `text`; the model's BOS and such are added where asked. Runs without the GIL."""
        # The batch call gives the interpreter free while it works; `encode` does not.
        return self._core.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_parts(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens of its own."""
        parts = self._core.encode_batch_fast(list(texts), add_special_tokens=False)
        return [part.ids for part in parts]

    @property
    def splits(self) -> bool:
        """Whether a text may be encoded in parts: none gets a space in front, or becomes another text."""
        return self.decode(self.encode_parts([_PROBE])[0]) == _PROBE

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of ids, special tokens with their names."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, of a special token its name; ids without a token are empty."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._to_bytes(token_id)
        return known

    def is_special(self, token_id: int) -> bool:
        """Whether generated text leaves this token out."""
        added = self._added.get(token_id)
        return added is not None and added.special

    def special_ids(self, texts: Collection[str]) -> frozenset[int]:
        """Of the special tokens, those with these names."""
        return frozenset(
            token_id
            for token_id, added in self._added.items()
            if added.special and added.content in texts
        )

    def _to_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added.content.encode()
        token = self._core.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            if all(char in _BYTE_OF for char in token):
                return bytes(_BYTE_OF[char] for char in token)
            return token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("▁", " ").encode()


def _is_byte_level(core: tokenizers.Tokenizer) -> bool:
    """True for byte-level vocabularies, False for SentencePiece's; raises ModelError for all others."""
    kinds = _decoder_kinds(json.loads(core.decoder.__getstate__())) if core.decoder else set()
    if "ByteLevel" in kinds:
        return True
    if kinds & {"ByteFallback", "Metaspace"}:
        return False
    raise ModelError(
        f"the tokenizer decodes by {', '.join(sorted(kinds)) or 'nothing'}; "
        "byte-level and SentencePiece tokenizers are supported"
    )


def _decoder_kinds(decoder: dict[str, Any]) -> set[str]:
    kinds = {decoder["type"]}
    for inner in decoder.get("decoders", ()):
        kinds |= _decoder_kinds(inner)
    return kinds
