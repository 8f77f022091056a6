"""The fingerprint of a model: what must be equal for two processes to share KV-Cache."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualpath.blocks import KVGeometry

LAYOUT_VERSION = 1
"""Raised whenever bytes of KV-Cache come to mean something else."""

_HASH_BYTES = 16


def fingerprint(
    *, weights: Mapping[str, str], config: Mapping[str, Any], dtype: str, geometry: KVGeometry
) -> str:
    """32 hex digits over the weight files' hashes by name, the config, dtype, block size, rows and layout.

    Equal on every machine: canonical JSON, sorted keys, no floats but those of the config.
    """
    content = {
        "layout": LAYOUT_VERSION,
        "weights": dict(weights),
        "config": dict(config),
        "dtype": dtype,
        "block_tokens": geometry.block_tokens,
        "layers": [[[part.name, part.nbytes] for part in parts] for parts in geometry.layers],
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(
        text.encode(), digest_size=_HASH_BYTES, person=b"dualpath.model.1"
    ).hexdigest()


class FileHashes:
    """BLAKE2b of files, remembered in a JSON file by path, size and time of change.

    Losing the file, or an entry to another process that writes at the same time, costs a hash.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def of(self, path: Path) -> str:
        """Hex digest of the file's bytes; raises OSError where it cannot be read."""
        path = path.resolve()
        stat = path.stat()
        stamp = f"{stat.st_size}:{stat.st_mtime_ns}"
        known = self._load().get(str(path))
        if known is not None and known[0] == stamp:
            return known[1]
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, _blake2b).hexdigest()
        self._store(str(path), stamp, digest)
        return digest

    def _load(self) -> dict[str, tuple[str, str]]:
        try:
            content = json.loads(self._cache.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(content, dict):
            return {}
        return {
            name: (entry[0], entry[1])
            for name, entry in content.items()
            if isinstance(entry, list) and len(entry) == 2 and all(type(x) is str for x in entry)
        }

    def _store(self, name: str, stamp: str, digest: str) -> None:
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        content = self._load() | {name: (stamp, digest)}
        fresh = self._cache.with_name(f"{self._cache.name}.{os.getpid()}")
        fresh.write_text(json.dumps(content, indent=1), encoding="utf-8")
        fresh.replace(self._cache)


def _blake2b() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_HASH_BYTES)
