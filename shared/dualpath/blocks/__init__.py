"""What a KV block is: its geometry, its key, and the life of the request that owns it. Pure."""

from dualpath.blocks.geometry import KVGeometry, KVPart
from dualpath.blocks.keys import KEY_BYTES, BlockKeys, block_key, pack_keys, root_key, unpack_keys
from dualpath.blocks.lifecycle import IllegalTransition, Phase, advance

__all__ = [
    "KEY_BYTES",
    "BlockKeys",
    "IllegalTransition",
    "KVGeometry",
    "KVPart",
    "Phase",
    "advance",
    "block_key",
    "pack_keys",
    "root_key",
    "unpack_keys",
]
