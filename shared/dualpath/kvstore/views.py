"""The memory that callers of a store give it. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def checked_views(
    block_bytes: int, keys: Sequence[bytes], views: Sequence[memoryview]
) -> list[memoryview]:
    """`views` as plain bytes. Raises ValueError where they are not one of `block_bytes` for each key."""
    if len(keys) != len(views) or any(view.nbytes != block_bytes for view in views):
        raise ValueError(
            f"the store takes one view of {block_bytes} bytes for each of {len(keys)} keys; "
            f"got {len(views)} of {sorted({view.nbytes for view in views})} bytes"
        )
    return [view.cast("B") for view in views]


def first_places(keys: Sequence[bytes]) -> dict[bytes, int]:
    """Each key once, in order, and where it comes first."""
    places: dict[bytes, int] = {}
    for index, key in enumerate(keys):
        places.setdefault(key, index)
    return places
