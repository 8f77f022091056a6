"""Pieces arrive where they should, however they lie, and those at equal distances in one call."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dualpath.memory.copying import Pair, copy_moves, copy_pieces, halves, moves

PIECE = 8


def pairs_of(places: list[int], data: bytes, target: bytearray) -> list[Pair]:
    into, out_of = memoryview(target), memoryview(data)
    return [
        (into[n * PIECE : (n + 1) * PIECE], out_of[at * PIECE : (at + 1) * PIECE])
        for n, at in enumerate(places)
    ]


@given(st.lists(st.integers(0, 30), max_size=20))
def test_every_target_has_its_sources_bytes(places: list[int]) -> None:
    data = random.Random(1).randbytes(31 * PIECE)
    wanted = b"".join(data[at * PIECE : (at + 1) * PIECE] for at in places)
    whole, halved = bytearray(len(wanted)), bytearray(len(wanted))
    copy_pieces(pairs_of(places, data, whole))
    for part in halves(list(moves(pairs_of(places, data, halved)))):
        copy_moves(part)
    assert whole == halved == wanted


def test_pieces_at_equal_distances_are_one_move() -> None:
    data, target = bytes(31 * PIECE), bytearray(31 * PIECE)
    forwards, backwards, alone = [0, 3, 6, 9], [30, 28, 26], [5]
    made = list(moves(pairs_of(forwards + backwards + alone, data, target)))
    assert [source.shape for _, source in made] == [(4, PIECE), (3, PIECE), (1, PIECE)]


def test_pieces_of_other_lengths_are_moves_of_their_own() -> None:
    data, target = random.Random(3).randbytes(24), bytearray(24)
    cuts = [(0, 8), (8, 16), (16, 24)]
    pairs = [(memoryview(target)[a:b], memoryview(data)[a:b]) for a, b in cuts]
    pairs[1:2] = [(pairs[1][0][:3], pairs[1][1][:3]), (pairs[1][0][3:], pairs[1][1][3:])]
    made = list(moves([*pairs, (memoryview(b""), memoryview(b""))]))
    assert len(made) == 4
    copy_moves(made)
    assert target == data


def test_halves_have_about_as_many_bytes() -> None:
    source = np.zeros((10, 100), np.uint8)
    for made in ([(source, source)], [(source[:1], source[:1])], [(source, source)] * 3):
        total = sum(part.size for _, part in made)
        first, second = halves(made)
        sizes = [sum(part.size for _, part in half) for half in (first, second)]
        assert sum(sizes) == total
        assert abs(sizes[0] - sizes[1]) <= 200
