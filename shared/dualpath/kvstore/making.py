"""The store that the settings ask for: the one place that knows all back ends."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from dualpath.kvstore.api import BlockStore
from dualpath.kvstore.directory.options import DirectoryOptions
from dualpath.kvstore.directory.store import DirectoryStore
from dualpath.kvstore.shards import MATCH_DEADLINE_S, ShardStore, parse_shard
from dualpath.lanes.api import Nic
from dualpath.settings import Settings
from dualpath.transport.api import Endpoint
from dualpath.wire.store import RUN_BYTES

S3_MODULE = "obstore"
SLOW_RUN_BYTES = 1 << 20
"""Of a NIC that is emulated a read in flight and the answers behind it wait for so much at a time."""


def make_store(
    settings: Settings,
    *,
    fingerprint: str,
    block_bytes: int,
    endpoint: Endpoint,
    nic: Nic,
    keeps: bool = True,
    match_deadline_s: float | None = None,
) -> BlockStore:
    """The store of a node or gateway, whose SNIC is `nic`, with `endpoint` on it.

    The owner starts the endpoint with the store's `on_message`, then the store; and closes them the other way round.
    Without `keeps` the store only asks and reads. `match_deadline_s`: how long a question which blocks are there may
    take; by default a fifth of a read, as its answer comes behind the reads of others on the same link.
    Raises ValueError where the settings do not suffice.
    """
    if match_deadline_s is None:
        match_deadline_s = max(MATCH_DEADLINE_S, settings.read_deadline_s / 5)
    match settings.store:
        case "directory":
            return DirectoryStore(
                block_directory(settings),
                fingerprint=fingerprint,
                block_bytes=block_bytes,
                nic=nic,
                options=DirectoryOptions(
                    threads=settings.store_threads,
                    fsync=settings.store_fsync,
                    capacity_bytes=settings.store_capacity,
                    ttl_s=settings.store_ttl_s,
                ),
                keeps=keeps,
            )
        case "s3":
            require_s3()
            from dualpath.kvstore.objects.bucket import Bucket
            from dualpath.kvstore.objects.options import bucket_options
            from dualpath.kvstore.objects.store import ObjectStore

            return ObjectStore(
                Bucket(bucket_options(settings)),
                fingerprint=fingerprint,
                block_bytes=block_bytes,
                nic=nic,
                requests=settings.store_s3_requests,
                match_deadline_s=match_deadline_s,
            )
        case "shards":
            return ShardStore(
                endpoint,
                [parse_shard(text) for text in settings.shard_addresses],
                fingerprint=fingerprint,
                block_bytes=block_bytes,
                replicas=settings.store_replicas,
                match_deadline_s=match_deadline_s,
                run_bytes=RUN_BYTES if nic.quantum_bytes >= RUN_BYTES else SLOW_RUN_BYTES,
            )


def block_directory(settings: Settings) -> Path:
    """Where the blocks of `store = "directory"` are."""
    return settings.store_directory or settings.home / "blocks"


def require_s3() -> None:
    """Raises ValueError where the extra is not installed."""
    if find_spec(S3_MODULE) is None:
        raise ValueError(
            "store is s3, but obstore is not installed: run pip install 'dualpath[s3]'"
        )
