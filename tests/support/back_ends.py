"""All back ends of the store behind one face, for the conformance suite: how to make clients, and how to do harm."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from pathlib import Path

import obstore
from obstore.store import S3Store
from tests.support.s3 import S3Server, Switch
from tests.support.stored import stored

from dualpath.kvstore.api import BlockStore
from dualpath.kvstore.directory.layout import space_of
from dualpath.kvstore.directory.options import DirectoryOptions
from dualpath.kvstore.directory.store import DirectoryStore
from dualpath.kvstore.disk import namespace_dir
from dualpath.kvstore.objects.bucket import Bucket
from dualpath.kvstore.objects.store import ObjectStore
from dualpath.kvstore.shards import ShardStore
from dualpath.lanes.nic import PacedNic
from dualpath.storage.shard import StorageShard
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.store import Namespace
from dualpath.wire.types import Address

SECRET = b"of the tests"


PATIENCE_S = 60.0
"""With shards that are there, and only as slow as the machine."""


def be_patient(store: ShardStore) -> None:
    """Also where another shard has a copy."""
    for link in store._links.values():
        link.stall_s = link.stall_s and PATIENCE_S


class BackEnd(ABC):
    """One storage, and clients of it. What is made is closed when `stack` is."""

    copies = 1
    """Of each block."""

    def __init__(self, root: Path, stack: AsyncExitStack) -> None:
        self.root = root
        self.stack = stack
        self._clients = 0

    async def client(self, block_bytes: int, *, fingerprint: str = "model") -> BlockStore:
        """Another client of the storage, started."""
        self._clients += 1
        store = await self._make(f"client-{self._clients}", Namespace(fingerprint, block_bytes))
        await store.start()
        self.stack.push_async_callback(store.close)
        return store

    @abstractmethod
    async def _make(self, name: str, namespace: Namespace) -> BlockStore: ...

    @abstractmethod
    async def flip(self, namespace: Namespace, key: bytes) -> None:
        """Flip a bit in the middle of every copy of a block, where it is kept."""

    @abstractmethod
    async def swap(self, namespace: Namespace, one: bytes, other: bytes) -> None:
        """Exchange what two blocks are made of, checksums and all that says whose they are left in place."""

    @abstractmethod
    async def sever(self) -> None:
        """From now on nothing that is asked is done."""


class ShardsBackEnd(BackEnd):
    def __init__(self, root: Path, stack: AsyncExitStack, count: int, replicas: int) -> None:
        super().__init__(root, stack)
        self._count = count
        self.copies = replicas
        self._replicas = replicas
        self._shards: list[StorageShard] = []

    async def _make(self, name: str, namespace: Namespace) -> BlockStore:
        while len(self._shards) < self._count:
            shard_id = f"storage-{len(self._shards)}"
            shard = StorageShard(shard_id, self.root / shard_id, self._endpoint(shard_id))
            await shard.start()
            self.stack.push_async_callback(shard.close)
            self._shards.append(shard)
        snic = self._endpoint(name)
        self.stack.push_async_callback(snic.close)
        store = ShardStore(
            snic,
            [Address(s.shard_id, "", s.address.host, s.address.port) for s in self._shards],
            fingerprint=namespace.fingerprint,
            block_bytes=namespace.block_bytes,
            replicas=self._replicas,
            match_deadline_s=PATIENCE_S,
        )
        be_patient(store)
        await snic.start(store.on_message)
        return store

    def _endpoint(self, name: str) -> TcpEndpoint:
        nic = PacedNic(f"{name}.nic", quantum_bytes=64 * 1024)
        return TcpEndpoint(
            name, host="127.0.0.1", nic=nic, secret=SECRET, transfer_deadline_s=PATIENCE_S
        )

    def _places(self, namespace: Namespace, key: bytes) -> list[tuple[Path, int]]:
        name = (namespace_dir(namespace), key)
        tables = [stored(self.root / shard.shard_id) for shard in self._shards]
        return [table[name] for table in tables if name in table]

    async def flip(self, namespace: Namespace, key: bytes) -> None:
        for path, offset in self._places(namespace, key):
            data = path.read_bytes()[offset : offset + namespace.block_bytes]
            _put(path, offset, _flipped(data))

    async def swap(self, namespace: Namespace, one: bytes, other: bytes) -> None:
        size = namespace.block_bytes
        places = {key: self._places(namespace, key) for key in (one, other)}
        data = {key: p[0][0].read_bytes()[p[0][1] : p[0][1] + size] for key, p in places.items()}
        for key, source in ((one, other), (other, one)):
            for path, offset in places[key]:
                _put(path, offset, data[source])

    async def sever(self) -> None:
        for shard in self._shards:
            await shard.close()


class DirectoryBackEnd(BackEnd):
    async def _make(self, name: str, namespace: Namespace) -> BlockStore:
        return DirectoryStore(
            self.root / "blocks",
            fingerprint=namespace.fingerprint,
            block_bytes=namespace.block_bytes,
            nic=PacedNic(name),
            options=DirectoryOptions(threads=4),
        )

    def _path(self, namespace: Namespace, key: bytes) -> Path:
        return Path(space_of(self.root / "blocks", namespace).block(key))

    async def flip(self, namespace: Namespace, key: bytes) -> None:
        path = self._path(namespace, key)
        path.write_bytes(_flipped(path.read_bytes()))

    async def swap(self, namespace: Namespace, one: bytes, other: bytes) -> None:
        a, b = self._path(namespace, one), self._path(namespace, other)
        aside = a.with_name("aside")
        a.rename(aside)
        b.rename(a)
        aside.rename(b)

    async def sever(self) -> None:
        for space in (self.root / "blocks").glob("*-*"):
            (space / "blocks").rename(space / "gone")
            (space / "blocks").symlink_to("blocks")


class S3BackEnd(BackEnd):
    def __init__(self, root: Path, stack: AsyncExitStack, server: S3Server) -> None:
        super().__init__(root, stack)
        self._prefix = f"conformance/{secrets.token_hex(4)}"
        self._server = server
        self._switch = Switch(server.port)
        options = server.options(self._prefix)
        self._raw = S3Store(
            options.bucket,
            prefix=options.prefix,
            endpoint=options.endpoint,
            access_key_id=options.access_key,
            secret_access_key=options.secret_key,
            region=options.region,
            client_options={"allow_http": True},
        )

    async def _make(self, name: str, namespace: Namespace) -> BlockStore:
        if not self._switch.port:
            await self._switch.start()
            self.stack.push_async_callback(self._switch.cut)
        return ObjectStore(
            Bucket(self._server.options(self._prefix, port=self._switch.port)),
            fingerprint=namespace.fingerprint,
            block_bytes=namespace.block_bytes,
            nic=PacedNic(name),
            match_deadline_s=30.0,
        )

    def _path(self, namespace: Namespace, key: bytes) -> str:
        return f"{namespace_dir(namespace)}/blocks/{key.hex()}"

    async def _get(self, path: str) -> bytes:
        return bytes(await (await obstore.get_async(self._raw, path)).bytes_async())

    async def flip(self, namespace: Namespace, key: bytes) -> None:
        path = self._path(namespace, key)
        await obstore.put_async(self._raw, path, _flipped(await self._get(path)))

    async def swap(self, namespace: Namespace, one: bytes, other: bytes) -> None:
        paths = self._path(namespace, one), self._path(namespace, other)
        first, second = [await self._get(path) for path in paths]
        await obstore.put_async(self._raw, paths[0], second)
        await obstore.put_async(self._raw, paths[1], first)

    async def sever(self) -> None:
        await self._switch.cut()


def _flipped(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def _put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
