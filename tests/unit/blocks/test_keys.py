"""Keys are the same in every process and on every machine; these vectors must never change."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.blocks import BlockKeys, block_key, pack_keys, root_key, unpack_keys
from dualpath.blocks.keys import KEY_BYTES, pack_tokens, unpack_tokens

GOLDEN_SCRIPT = """
from dualpath.blocks import BlockKeys, block_key, root_key
plain = root_key("fp")
salted = root_key("fp", salt="tenant-a", extras=[("lora", "x"), ("image", "y")])
chain = BlockKeys(plain, 4)
chain.extend([0, 1, 2, 2**31 - 1, -1, 32000, 7, 7, 9])
for key in (plain, salted, block_key(salted, range(64)), *chain.keys):
    print(key.hex())
"""

GOLDEN = [
    "829cba388656dc6b6b5f5814c5a9b398",
    "4ce71946cdd598004717775e4917c9f1",
    "c0eb14c959d8cf6bf863551f51f3521e",
    "b2fa56cfe4fc274c53974ccf2d8eb76b",
    "468fe00e0cd268982bde3c63690f9c7a",
]


def test_golden_vectors_hold_whatever_the_hash_seed() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", GOLDEN_SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for seed in ("0", "1", "4242")
    ]
    assert outputs == [GOLDEN] * 3


def test_keys_are_the_digests_that_their_definition_says() -> None:
    root = blake2b(digest_size=16, person=b"dualpath.root.1")
    for text in (b"fp", b"salt", b"a", b"1", b"b", b"2"):
        root.update(len(text).to_bytes(8, "little") + text)
    extras = [("b", "2"), ("a", "1")]
    assert root_key("fp", salt="salt", extras=extras) == root.digest()
    block = blake2b(root.digest(), digest_size=16, person=b"dualpath.blk.1")
    block.update(struct.pack("<3i", 7, -8, 9))
    assert block_key(root.digest(), [7, -8, 9]) == block.digest()


def test_everything_that_changes_kv_changes_the_root() -> None:
    roots = {
        root_key("fp"),
        root_key("fq"),
        root_key("fp", salt="s"),
        root_key("fps"),
        root_key("fp", extras=[("s", "")]),
        root_key("fp", extras=[("", "s")]),
        root_key("fp", salt="s", extras=[("a", "b")]),
        root_key("fp", salt="s", extras=[("ab", "")]),
    }
    assert len(roots) == 8
    assert all(len(root) == KEY_BYTES == 16 for root in roots)


def test_the_order_of_extras_does_not_matter() -> None:
    pairs = [("lora", "x"), ("image", "y")]
    assert root_key("fp", extras=pairs) == root_key("fp", extras=pairs[::-1])


ids = st.integers(-(2**31), 2**31 - 1)


@given(tokens=st.lists(ids, max_size=50), size=st.integers(1, 9), data=st.data())
def test_keys_do_not_depend_on_the_portions(
    tokens: list[int], size: int, data: st.DataObject
) -> None:
    root = root_key("fp")
    whole, portions = BlockKeys(root, size), BlockKeys(root, size)
    fresh = whole.extend(tokens)
    rest = list(tokens)
    collected: list[bytes] = []
    while rest:
        n = data.draw(st.integers(1, len(rest)))
        collected += portions.extend(rest[:n])
        del rest[:n]
    assert fresh == whole.keys == portions.keys == collected
    assert whole.tail == portions.tail == tokens[len(tokens) // size * size :]
    resumed = BlockKeys.resume(root, size, whole.keys, whole.tail)
    assert resumed.parent == whole.parent
    assert resumed.extend(range(size)) == whole.extend(range(size))


@given(tokens=st.lists(ids, min_size=4, max_size=12), at=st.integers(0, 11))
def test_a_key_names_the_whole_chain_up_to_its_block(tokens: list[int], at: int) -> None:
    at %= len(tokens)
    changed = [*tokens[:at], tokens[at] ^ 1, *tokens[at + 1 :]]
    one, two = BlockKeys(root_key("fp"), 2), BlockKeys(root_key("fp"), 2)
    one.extend(tokens)
    two.extend(changed)
    same = at // 2
    assert one.keys[:same] == two.keys[:same]
    assert not set(one.keys[same:]) & set(two.keys[same:])


def test_a_tail_is_shorter_than_a_block() -> None:
    with pytest.raises(ValueError, match="holds a full block"):
        BlockKeys.resume(root_key("fp"), 2, [], [1, 2])


@given(st.lists(ids))
def test_packed_tokens_come_back(tokens: list[int]) -> None:
    assert unpack_tokens(pack_tokens(tokens)) == tokens


def test_packed_tokens_are_little_endian_int32() -> None:
    assert pack_tokens([1, -1]) == b"\1\0\0\0\xff\xff\xff\xff"
    with pytest.raises(OverflowError):
        pack_tokens([2**31])
    with pytest.raises(ValueError):
        unpack_tokens(b"abc")


def test_packed_keys_come_back() -> None:
    keys = [block_key(b"", [n]) for n in range(3)]
    assert unpack_keys(pack_keys(keys)) == keys
    with pytest.raises(ValueError, match="whole number of 16-byte keys"):
        unpack_keys(b"abc")
