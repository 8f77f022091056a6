"""The arithmetic of the synthetic engine: KV bytes, next tokens, and an oracle of both. Pure.

A row's bytes are a function of (parent key of its block, the block's ids up to and including its token,
layer). The next token is a digest of the KV bytes that are actually present, over all layers and tokens:
one wrong byte anywhere gives another answer.
"""

from __future__ import annotations

import math
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import count, islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest

from dualpath.blocks import BlockKeys, KVGeometry, block_key, root_key
from dualpath.model.errors import ModelError
from dualpath.wire.types import Sampled, Sampling

States = NDArray[np.uint64]
"""One 64-bit word per token, from which its rows in all layers follow."""

NEVER = -100.0
"""The bias that bans a token, as OpenAI's API has it."""

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_PIECE_BYTES = 1 << 22


class SyntheticShape(Protocol):
    """What of a `ModelSpec` matters here."""

    @property
    def geometry(self) -> KVGeometry: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...


def _mix(words: States) -> States:
    """The finalizer of splitmix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _mix_int(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def block_sum(ids: Iterable[int]) -> int:
    """The part of a token's state that its block's ids up to it make up; grows by `id_term`."""
    return sum(id_term(position, token) for position, token in enumerate(ids)) & _MASK


def id_term(position: int, token_id: int) -> int:
    """What `token_id` at `position` in its block adds to the block's sum (modulo 2^64)."""
    return _mix_int((token_id + (position + 1) * _STEP) & _MASK)


def token_state(parent: bytes, ids_sum: int) -> int:
    """The state of the token that is the last in `ids_sum`."""
    return _mix_int((_seed(parent) + ids_sum) & _MASK)


def token_states(parent: bytes, ids: Sequence[int], block_tokens: int) -> States:
    """States of tokens that begin at a block whose predecessor is `parent`: uint64 `[len(ids)]`."""
    blocks = -(-len(ids) // block_tokens)
    padded = np.zeros(blocks * block_tokens, np.uint64)
    padded[: len(ids)] = np.frombuffer(array("i", ids), np.int32)
    grid = padded.reshape(blocks, block_tokens)
    grid += np.arange(1, block_tokens + 1, dtype=np.uint64) * np.uint64(_STEP)
    sums = np.cumsum(_mix(grid), axis=1, dtype=np.uint64)
    seeds = np.fromiter(map(_seed, _parents(parent, ids, block_tokens)), np.uint64, blocks)
    return _mix(sums + seeds[:, None]).reshape(-1)[: len(ids)]


def _seed(parent: bytes) -> int:
    return int.from_bytes(parent[:8], "little")


def _parents(parent: bytes, ids: Sequence[int], block_tokens: int) -> Iterator[bytes]:
    for start in range(0, len(ids), block_tokens):
        yield parent
        if start + block_tokens < len(ids):
            parent = block_key(parent, ids[start : start + block_tokens])


@lru_cache(maxsize=1024)
def _multipliers(layer: int, words: int) -> States:
    numbers = np.arange(words, dtype=np.uint64) + np.uint64((layer + 1) << 32)
    return _mix(numbers * np.uint64(_STEP)) | np.uint64(1)


def fill_rows(states: States, layer: int, row_bytes: int, into: memoryview) -> None:
    """Write the KV rows of `states` in `layer` to `into`: bytes `[len(states), row_bytes]`."""
    target = np.frombuffer(into, np.uint8).reshape(len(states), row_bytes)
    factors = _multipliers(layer, -(-row_bytes // 8))
    step = max(_PIECE_BYTES // row_bytes, 1)
    for start in range(0, len(states), step):
        words = states[start : start + step, None] * factors
        words ^= words >> np.uint64(32)
        data = words.astype("<u8", copy=False).view(np.uint8)
        target[start : start + step] = data[:, :row_bytes]


def digest_rows(rows: memoryview) -> int:
    """The digest of one layer's rows, end to end; that of streaming them through `xxh3_64`."""
    return xxh3_64_intdigest(rows)


def next_token(
    digests: Sequence[int],
    index: int,
    sampling: Sampling,
    vocab_size: int,
    allowed: NDArray[np.bool_] | None = None,
) -> Sampled:
    """Generated token number `index`, where `digests` are those of all layers' rows so far.

    The seed counts only where `temperature` > 0. Ids that may not come give way to the next one: stop ids while
    `index` is below `min_tokens`, those whose bias is −100, and those that a grammar does not have `allowed`.
    Log-probabilities are made up, consistent (they sum to less than 1) and reproducible. Raises ModelError where no
    id may come.
    """
    seed = sampling.seed & _MASK if sampling.temperature > 0 else 0
    first = xxh3_64_intdigest(struct.pack(f"<{len(digests)}QQQ", *digests, index, seed))
    banned = {token for token, bias in sampling.logit_bias if bias <= NEVER}
    if index < sampling.min_tokens:
        banned.update(sampling.stop_ids)
    following = (token for token in _from(first, vocab_size, allowed) if token not in banned)
    best = list(islice(following, max(sampling.top_logprobs or 0, 1)))
    if not best:
        raise ModelError("all ids of the vocabulary are forbidden; nothing can be sampled")
    if sampling.top_logprobs is None:
        return Sampled(best[0])
    ranked = tuple((token, -math.log(2) * (k + 1)) for k, token in enumerate(best))
    return Sampled(best[0], ranked[0][1], ranked[: sampling.top_logprobs])


def _from(first: int, size: int, allowed: NDArray[np.bool_] | None) -> Iterator[int]:
    """All ids once, from `first` on, around; of those `allowed` only."""
    if allowed is None:
        return ((first + k) % size for k in range(size))
    ids = np.flatnonzero(allowed).tolist()
    at = bisect_left(ids, first % size)
    return iter(ids[at:] + ids[:at])


def reference_tokens(
    spec: SyntheticShape,
    prompt_ids: Sequence[int],
    n: int,
    sampling: Sampling,
    *,
    root: bytes | None = None,
    generated: int = 0,
) -> list[int]:
    """What a right cluster answers: up to `n` tokens, a stop id being the last.

    `root` is the key chain's (default: no salt, no extras); `generated` counts tokens at the end of
    `prompt_ids` that an earlier attempt has generated.
    """
    geometry = spec.geometry
    keys = BlockKeys(root_key(spec.fingerprint) if root is None else root, geometry.block_tokens)
    digests = [xxh3_64() for _ in range(geometry.n_layers)]
    _digest_states(
        token_states(keys.root, prompt_ids, geometry.block_tokens),
        geometry,
        [d.update for d in digests],
    )
    keys.extend(prompt_ids)
    tokens: list[int] = []
    for index in islice(count(generated), n):
        token = next_token([d.intdigest() for d in digests], index, sampling, spec.vocab_size)
        tokens.append(token.token_id)
        if token.token_id in sampling.stop_ids:
            break
        state = token_state(keys.parent, block_sum([*keys.tail, token.token_id]))
        _digest_states(np.array([state], np.uint64), geometry, [d.update for d in digests])
        keys.extend([token.token_id])
    return tokens


def _digest_states(
    states: States, geometry: KVGeometry, updates: Sequence[Callable[[memoryview], None]]
) -> None:
    for layer, row_bytes in enumerate(geometry.row_bytes):
        step = max(_PIECE_BYTES // row_bytes, 1)
        for start in range(0, len(states), step):
            piece = states[start : start + step]
            rows = memoryview(bytearray(len(piece) * row_bytes))
            fill_rows(piece, layer, row_bytes, rows)
            updates[layer](rows)
