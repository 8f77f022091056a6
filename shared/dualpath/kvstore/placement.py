"""Which shard holds a block: rendezvous hashing, so a change of shards moves only the changed shards' share. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash


class Placement:
    """Places keys over a fixed set of shards; equal in every process, whatever order the shards come in."""

    def __init__(self, shard_ids: Sequence[str]) -> None:
        """Raises ValueError where there is no shard, or one twice."""
        if not shard_ids or len(set(shard_ids)) != len(shard_ids):
            raise ValueError(
                f"a store needs at least one shard, each named once; got {list(shard_ids)}"
            )
        self._seeds = [
            (xxhash.xxh3_64_intdigest(shard_id.encode()), shard_id)
            for shard_id in sorted(shard_ids, reverse=True)
        ]

    def holder(self, key: bytes) -> str:
        """The shard where `key` belongs first."""
        return self.holders([key], 1)[0][0]

    def holders(self, keys: Sequence[bytes], replicas: int) -> list[tuple[str, ...]]:
        """The shards that keep a copy of each key, the first choice first."""
        names = [name for _, name in self._seeds]
        if len(names) == 1:
            return [(names[0],)] * len(keys)
        weigh = xxhash.xxh3_64_intdigest
        columns = [[weigh(key, seed) for key in keys] for seed, _ in self._seeds]
        if replicas == 1:
            return [(names[w.index(max(w))],) for w in zip(*columns, strict=True)]
        return [
            tuple(name for _, name in sorted(zip(w, names, strict=True), reverse=True)[:replicas])
            for w in zip(*columns, strict=True)
        ]
