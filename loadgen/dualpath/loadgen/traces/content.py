"""What appended tokens are: numbers from a counter-based hash, equal on every machine and for ever. Pure.

Token j of a stream s is `splitmix64(s, j)` reduced to the vocabulary, so that any stretch of a stream can be made by
itself. A stream is an agent's turn, or a block of a hash id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dualpath.loadgen.traces.model import Trace, Trajectory

Ids = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TURN, _BLOCK, _FIRST = 1, 2, 3
_MASK = (1 << 64) - 1


def turn_ids(trace: Trace, trajectory: Trajectory, turn: int, vocab: tuple[int, int]) -> Ids:
    """The token ids that a turn appends, each in `range(*vocab)`.

    Equal hash ids of a trace give equal blocks; equal seeds of trajectories equal turns. Turns with messages have no
    ids of their own: theirs are made as if there were none."""
    what = trajectory.turns[turn]
    if what.blocks:
        parts = [_block(trace.seed, block, trace.block_tokens, *vocab) for block in what.blocks]
        return np.concatenate(parts)[: what.append_tokens]
    if trajectory.first_round is not None:
        if turn == 0:
            return _stream(
                _key(trace.seed, _FIRST, trajectory.first_round), what.append_tokens, *vocab
            )
        turn -= 1
    return _stream(_key(trace.seed, _TURN, trajectory.seed, turn), what.append_tokens, *vocab)


def prompt_ids(
    trace: Trace,
    trajectory: Trajectory,
    turn: int,
    answers: Sequence[Sequence[int]],
    vocab: tuple[int, int],
) -> list[int]:
    """The whole prompt of a turn, given the ids that the turns before it generated."""
    ids: list[int] = []
    for number in range(turn + 1):
        ids += turn_ids(trace, trajectory, number, vocab).tolist()
        if number < turn:
            ids += answers[number]
    return ids


def turn_words(trace: Trace, trajectory: Trajectory, turn: int, words: float) -> str:
    """Text in place of a turn's token ids: `words` words for each token, at least one, separated by spaces."""
    ids = turn_ids(trace, trajectory, turn, (0, len(WORDS)))
    count = max(round(len(ids) * words), 1)
    picked = np.resize(ids, count) if count <= len(ids) or not len(ids) else _longer(ids, count)
    return " ".join([WORDS[number] for number in picked.tolist()])


def _longer(ids: Ids, count: int) -> Ids:
    """More words than ids: the first ones are the ids' own, the others follow from the last id."""
    key = _key(int(ids[-1]), len(ids))
    return np.concatenate([ids, _stream(key, count - len(ids), 0, len(WORDS))])


@lru_cache(maxsize=4096)
def _block(seed: int, block: int, tokens: int, low: int, high: int) -> Ids:
    return _stream(_key(seed, _BLOCK, block), tokens, low, high)


def _key(*numbers: int) -> int:
    """One stream's number from several, whose order matters."""
    state = 0
    for number in numbers:
        state = _mixed((state ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK)
    return state


def _mixed(z: int) -> int:
    """The output function of splitmix64 (Steele, Lea and Flood, 2014)."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def _stream(key: int, count: int, low: int, high: int) -> Ids:
    if not 0 <= low < high <= 1 << 31:
        raise ValueError(f"a vocabulary is LOW:HIGH with 0 ≤ LOW < HIGH, not {low}:{high}")
    z = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    # The upper half times the range: no division, and a bias of a range's part in 2**32.
    return ((z >> np.uint64(32)) * np.uint64(high - low) >> np.uint64(32)).astype(np.int64) + low


WORDS = tuple(
    re.findall(
        r"\w+",
        """
    the of and to in is that it was for on are as with they at be this from have or by one had not
    but what all were when we there can an your which their said if do will each about how up out
    them then she many some so these would other into has more her two like him see time could no
    make than first been its who now people my made over did down only way find use may water long
    little very after words called just where most know get through back much before go good new
    write our used me man too any day same right look think also around another came come work three
    word must because does part even place well such here take why things help put years different
    away again off went old number great tell men say small every found still between name should
    home big give air line set own under read last never us left end along while might next sound
    below saw something thought both few those always looked show large often together asked house
    world going want school important until form food keep children feet land side without boy once
    animals life enough took sometimes four head above kind began almost live page got earth need
    far hand high year mother light parts country father let night following picture being study
    second eyes soon times story boys since white days ever paper hard near sentence better best
    across during today others however sure means knew its
        """,
    )
)
"""Common words, most of which are a token in common vocabularies."""
