from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.blocks import KVGeometry, KVPart

geometries = st.builds(
    KVGeometry,
    block_tokens=st.integers(1, 9),
    layers=st.lists(
        st.lists(st.builds(KVPart, st.just("p"), st.integers(1, 9)), min_size=1, max_size=3).map(
            tuple
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
)


@given(geometries)
def test_layer_blocks_end_to_end_are_a_full_block(geometry: KVGeometry) -> None:
    ends = [
        geometry.layer_offset(i) + geometry.block_tokens * row
        for i, row in enumerate(geometry.row_bytes)
    ]
    starts = [geometry.layer_offset(i) for i in range(geometry.n_layers)]
    assert starts == [0, *ends[:-1]]
    assert ends[-1] == geometry.full_block_bytes == geometry.block_tokens * geometry.token_bytes


@given(geometries, st.integers(1, 20))
def test_the_flat_view_holds_every_row_once(geometry: KVGeometry, capacity: int) -> None:
    address = 0
    for layer, row in enumerate(geometry.row_bytes):
        for token in range(capacity):
            assert geometry.flat_offset(capacity, layer, token) == address
            address += row
    assert address == geometry.flat_bytes(capacity)


@given(st.integers(1, 100), st.integers(0, 1000))
def test_block_counts(block_tokens: int, tokens: int) -> None:
    geometry = KVGeometry(block_tokens, ((KVPart("kv", 1),),))
    full, hits = geometry.full_blocks(tokens), geometry.max_hit_blocks(tokens)
    assert full * block_tokens <= tokens < (full + 1) * block_tokens
    assert (geometry.blocks_for(tokens) - 1) * block_tokens < max(tokens, 1)
    assert geometry.blocks_for(tokens) * block_tokens >= tokens
    # The last token of a prompt is always computed.
    assert hits * block_tokens < max(tokens, 1) <= (hits + 1) * block_tokens


@pytest.mark.parametrize(
    ("block_tokens", "layers", "words"),
    [
        (0, ((KVPart("k", 1),),), "block_tokens must be at least 1"),
        (1, (), "at least one layer"),
        (1, ((),), "every layer one part"),
        (1, ((KVPart("k", 0),),), "at least one byte"),
    ],
)
def test_what_is_no_geometry_is_refused(
    block_tokens: int, layers: tuple[tuple[KVPart, ...], ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        KVGeometry(block_tokens, layers)
