"""A storage shard: keeps blocks on its disk and moves them into and out of the memory of nodes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

from dualpath.kvstore.disk import DiskOptions, DiskStore, namespace_dir
from dualpath.kvstore.index import BlockName
from dualpath.lanes.api import Nic
from dualpath.storage.calls import (
    MAX_DEADLINE_S,
    Refusal,
    answer,
    check_checksums,
    check_deadline,
    check_depths,
    check_keys,
    check_namespace,
    check_offsets,
)
from dualpath.storage.leases import LeaseTable
from dualpath.storage.reads import RUNS_IN_FLIGHT, ReadCall
from dualpath.storage.staging import Staging
from dualpath.storage.writes import WriteCall
from dualpath.tasks import Tasks
from dualpath.telemetry.logs import get_logger
from dualpath.telemetry.tracing import span
from dualpath.transport.api import Endpoint
from dualpath.wire import store as wire
from dualpath.wire.types import Address, NodeStatus, PoolUse

log = get_logger(__name__)

MAX_CALLS_PER_PEER = 4096
STAGING_BYTES = 64 << 20

Call = ReadCall | WriteCall
Request = TypeVar("Request", wire.Read, wire.WriteOpen)


@dataclass
class _Peer:
    """One life of one client, while it has calls open."""

    calls: dict[int, Call] = field(default_factory=dict)
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2 * RUNS_IN_FLIGHT))


class StorageShard:
    """Serves `wire.store` at one endpoint. Owns its disk and the endpoint, once started."""

    def __init__(
        self,
        shard_id: str,
        root: Path,
        endpoint: Endpoint,
        *,
        nic: Nic | None = None,
        options: DiskOptions | None = None,
        staging_bytes: int = STAGING_BYTES,
    ) -> None:
        """`staging_bytes` bounds the memory of reads, and again that of writes; `nic` is only for the status."""
        self.shard_id = shard_id
        self._disk = DiskStore(root, options, held=self._is_leased)
        self._endpoint = endpoint
        self._nic = nic
        self._reading = Staging("read_staging_bytes", staging_bytes, wire.MAX_BLOCK_BYTES)
        self._writing = Staging("write_staging_bytes", staging_bytes, wire.MAX_BLOCK_BYTES)
        for staging in (self._reading, self._writing):
            endpoint.pin(staging.memory, staging.shared)
        self._leases = LeaseTable()
        self._peers: dict[tuple[str, str], _Peer] = {}
        self._tasks = Tasks()
        self._closing = False

    @property
    def address(self) -> Address:
        return self._endpoint.address

    async def start(self) -> None:
        """Open the disk and listen. Raises StoreInUse, OSError."""
        try:
            await self._disk.open()
            await self._endpoint.start(self._on_message)
        except BaseException:
            await self._disk.close()
            raise
        stat = self._disk.stat()
        log.info("shard serves", shard=self.shard_id, blocks=stat.blocks, nbytes=stat.nbytes)

    async def close(self) -> None:
        """End every call, close the endpoint, and unlock the disk."""
        self._closing = True
        await self._tasks.close()
        self._peers.clear()  # What was cancelled before its first step did not end its call.
        await self._endpoint.close()
        await self._disk.close()

    def status(self) -> NodeStatus:
        self._leases.expire(asyncio.get_running_loop().time())
        stat = self._disk.stat()
        calls = sum(len(peer.calls) for peer in self._peers.values())
        nic = self._nic
        return NodeStatus(
            pools=(
                self._reading.pool_use(),
                self._writing.pool_use(),
                PoolUse("store_calls", calls, MAX_CALLS_PER_PEER),
                PoolUse("leases", len(self._leases), 0),
            ),
            nics=() if nic is None else tuple(nic.uses()),
            counters={
                "blocks": stat.blocks,
                "bytes": stat.nbytes,
                "allocated_bytes": self._disk.allocated_bytes,
                **self._disk.counters,
            },
        )

    # ── messages ───────────────────────────────────────────────────────────────────────────────────
    async def _on_message(self, peer: Address, payload: bytes) -> None:
        """Begin what a client asks for. Raises MalformedMessage or Refusal, which the transport tells it."""
        if self._closing:
            raise Refusal(f"shard {self.shard_id} is closing")
        match message := wire.to_shard(payload):
            case wire.Release():
                self._leases.release(message.lease)
            case wire.Suspect():
                keys = check_keys(message.namespace, message.keys)
                self._disk.suspect(message.namespace, keys)
            case wire.Ping() | wire.WriteCommit():
                call = self._call(peer, message.op)
                if call is None:
                    raise Refusal(f"call {message.op} is not open at shard {self.shard_id}")
                if isinstance(message, wire.WriteCommit) and isinstance(call, WriteCall):
                    call.commit()
            case wire.CancelRead() | wire.CancelWrite():
                if call := self._call(peer, message.op):
                    call.cancel()
            case _:
                self._tasks.spawn(self._begin(peer, message), type(message).__name__)

    def _call(self, peer: Address, op: int) -> Call | None:
        known = self._peers.get((peer.endpoint_id, peer.incarnation))
        return known.calls.get(op) if known else None

    def _begin(
        self, peer: Address, message: wire.Match | wire.StatRequest | wire.Read | wire.WriteOpen
    ) -> Coroutine[Any, Any, object]:
        """Check a call and make it known, so that what the client says next finds it; returns its work."""
        try:
            match message:
                case wire.Match():
                    return answer(self._endpoint, peer, self._match(message))
                case wire.StatRequest():
                    return answer(self._endpoint, peer, self._stat(message))
                case wire.Read():
                    return self._open(peer, message, self._read)
                case wire.WriteOpen():
                    return self._open(peer, message, self._write)
        except Refusal as refusal:
            self._disk.counters["refused"] += 1
            log.warning("refused a call", peer=peer.endpoint_id, why=str(refusal))
            return answer(self._endpoint, peer, wire.StoreRefused(message.op, str(refusal)))

    def _open(
        self, peer: Address, request: Request, make: Callable[[Address, _Peer, Request], Call]
    ) -> Coroutine[Any, Any, None]:
        identity = (peer.endpoint_id, peer.incarnation)
        client = self._peers.get(identity) or _Peer()
        if request.op in client.calls:
            raise Refusal(f"call {request.op} is open already")
        if len(client.calls) >= MAX_CALLS_PER_PEER:
            raise Refusal(f"{MAX_CALLS_PER_PEER} calls are open already; finish some first")
        call = make(peer, client, request)
        client.calls[request.op] = call
        self._peers[identity] = client
        return self._run(identity, client, request, call)

    async def _run(
        self,
        identity: tuple[str, str],
        client: _Peer,
        request: wire.Read | wire.WriteOpen,
        call: Call,
    ) -> None:
        name = "storage.read" if isinstance(request, wire.Read) else "storage.write"
        try:
            with span(name, request.trace, shard=self.shard_id, blocks=len(call.keys)):
                await call.run()
        finally:
            del client.calls[request.op]
            if not client.calls:
                self._peers.pop(identity, None)

    # ── calls ──────────────────────────────────────────────────────────────────────────────────────
    def _match(self, message: wire.Match) -> wire.MatchDone:
        keys = check_keys(message.namespace, message.keys)
        with span("storage.match", message.trace, shard=self.shard_id, blocks=len(keys)) as found:
            present = self._disk.present(message.namespace, keys)
            found.set(found=sum(present))
        self._disk.touch(message.namespace, keys)
        lease = 0
        if message.lease_s > 0 and any(present):
            lease = secrets.randbits(62) + 1
            now = asyncio.get_running_loop().time()
            self._leases.expire(now)
            self._leases.grant(
                lease,
                namespace_dir(message.namespace),
                compress(keys, present),
                now + min(message.lease_s, MAX_DEADLINE_S),
            )
        return wire.MatchDone(message.op, present, lease)

    def _is_leased(self, block: BlockName) -> bool:
        self._leases.expire(asyncio.get_running_loop().time())
        return self._leases.holds(*block)

    def _stat(self, message: wire.StatRequest) -> wire.StatDone:
        if message.namespace is not None:
            check_namespace(message.namespace)
        stat = self._disk.stat(message.namespace)
        return wire.StatDone(message.op, stat.blocks, stat.nbytes, self.status().counters)

    def _read(self, peer: Address, client: _Peer, request: wire.Read) -> ReadCall:
        keys = check_keys(request.namespace, request.keys)
        check_offsets(request.offsets, keys)
        return ReadCall(
            peer,
            request,
            keys,
            check_deadline(request.deadline_s),
            self._disk,
            self._reading,
            self._endpoint,
            client.turn,
            in_place=self._endpoint.sends_files and self._disk.reads_in_place,
        )

    def _write(self, peer: Address, client: _Peer, request: wire.WriteOpen) -> WriteCall:
        keys = check_keys(request.namespace, request.keys)
        check_checksums(request.checksums, keys)
        check_depths(request.depths, keys)
        return WriteCall(
            peer,
            request,
            keys,
            check_deadline(request.deadline_s),
            self._disk,
            self._writing,
            self._endpoint,
        )
