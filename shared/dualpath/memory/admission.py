"""What a request needs of each pool, and the check that every pool can hold the longest one. Pure."""

from __future__ import annotations

from dualpath.blocks import KVGeometry
from dualpath.settings import Settings

PAGE_BYTES = 4096


def slot_stride(slot_bytes: int) -> int:
    """Bytes that a slot of `slot_bytes` occupies: slots begin on pages, as direct I/O and RDMA want it."""
    return -(-slot_bytes // PAGE_BYTES) * PAGE_BYTES


def slots_in(buffer_bytes: int, slot_bytes: int) -> int:
    """How many slots fit into a buffer of so many bytes."""
    return buffer_bytes // slot_stride(slot_bytes)


def ring_depth(geometry: KVGeometry, settings: Settings) -> int:
    """How many layers of a request are in PE HBM at a time: all of them where prefill is not layerwise."""
    if not settings.use_layerwise:
        return geometry.n_layers
    return min(settings.ring_layers, geometry.n_layers)


def ring_bytes(geometry: KVGeometry, tokens: int, depth: int) -> int:
    """PE HBM of `depth` layers of `tokens` rows, cached and new ones together; with all layers, each has its
    own width, else every place has the widest layer's."""
    if depth >= geometry.n_layers:
        return tokens * geometry.token_bytes
    return tokens * depth * geometry.max_row_bytes


def check_capacity(settings: Settings, geometry: KVGeometry, max_context: int) -> list[str]:
    """One sentence for each pool that cannot hold one request of `max_context` tokens: which setting to raise,
    and to what. Nobody may start while there is one: the order of acquisition excludes deadlock only if every
    request fits alone."""
    stride = slot_stride(geometry.full_block_bytes)
    # A prompt leaves room for one generated token, which needs no slot.
    prompt_tokens = max_context - 1
    decode_blocks = geometry.blocks_for(prompt_tokens) + settings.write_back_blocks
    needs = {
        "prefill_buffer": geometry.max_hit_blocks(prompt_tokens) * stride,
        "decode_buffer": decode_blocks * stride,
        "prefill_hbm": ring_bytes(geometry, prompt_tokens, ring_depth(geometry, settings)),
        "decode_hbm": geometry.blocks_for(max_context) * geometry.full_block_bytes,
    }
    beside = {
        "decode_buffer": f" beside {settings.write_back_blocks} write-back blocks (write_back_blocks)",
        "prefill_hbm": "" if settings.use_layerwise else " with all its layers (layerwise is off)",
    }
    return [
        f"{name} is {size} bytes, but one request of {max_context} tokens (max_context)"
        f"{beside.get(name, '')} needs {need}; raise {name} to {_readable(need)}, or lower max_context"
        for name, need in needs.items()
        if (size := getattr(settings, name)) < need
    ]


def _readable(nbytes: int) -> str:
    """Rounded up, so that following the advice is enough."""
    return f"{-(-nbytes // 2**20)}MiB"
