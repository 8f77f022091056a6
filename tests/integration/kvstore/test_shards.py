"""The client of the shards against a shard that lies, breaks off or is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dualpath.kvstore.api import ReadStatus, WriteStatus
from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.shards import ShardStore
from dualpath.transport.api import TransportError
from dualpath.wire import store as wire
from dualpath.wire.codec import encode
from dualpath.wire.types import Address

SIZE = 5_000
KEY = b"k" * 16
BLOCK = bytes(range(250)) * 20


class Liar:
    """A peer that stands in for a shard and answers as the test says."""

    def __init__(self, endpoint: Any, answers: Callable[[Liar, Any], Awaitable[object]]) -> None:
        self.endpoint = endpoint
        self.client: Address
        self.heard: list[Any] = []
        self.given_up = asyncio.Event()
        self._answers = answers
        self._working: list[asyncio.Task[object]] = []

    async def on_message(self, peer: Address, payload: bytes) -> None:
        message = wire.to_shard(payload)
        self.client = peer
        self.heard.append(message)
        if isinstance(message, wire.CancelWrite):
            self.given_up.set()
        if isinstance(message, wire.Ping):
            raise RuntimeError("this call is not open")
        if not isinstance(message, wire.CancelRead):
            self._working.append(asyncio.create_task(self._answer(message)))

    async def _answer(self, message: Any) -> None:
        answer = await self._answers(self, message)
        if isinstance(answer, bytes):
            await self.endpoint.send(self.client, answer)
        elif answer is not None:
            await self.endpoint.send(self.client, encode(answer))  # type: ignore[arg-type]

    async def put(self, read: wire.Read, block: bytes = BLOCK) -> None:
        await self.endpoint.write(self.client, read.region_key, read.offsets[0], [block])


async def against(
    cluster: Any, answers: Callable[[Liar, Any], Awaitable[object]]
) -> tuple[ShardStore, Liar]:
    endpoint = await cluster.peer("storage-0")
    liar = Liar(endpoint, answers)
    await endpoint.start(liar.on_message)
    return await cluster.store(SIZE, shards=[endpoint.address]), liar


async def read(store: ShardStore, deadline_s: float = 20) -> tuple[ReadStatus, bytes]:
    into = bytearray(SIZE)
    statuses = await store.read([KEY], [memoryview(into)], deadline_s=deadline_s)
    return statuses[0], bytes(into)


async def write(store: ShardStore, deadline_s: float = 20) -> WriteStatus:
    return (await store.write([KEY], [memoryview(BLOCK)], deadline_s=deadline_s))[0]


def done(read: wire.Read, **changes: Any) -> wire.ReadDone:
    fields = {"statuses": bytes([wire.FOUND]), "checksums": block_checksum(KEY, BLOCK)} | changes
    return wire.ReadDone(read.op, **fields)


async def test_a_right_block_with_its_checksum_is_found(cluster: Any) -> None:
    async def answers(liar: Liar, message: Any) -> object:
        await liar.put(message)
        return done(message)

    store, _ = await against(cluster, answers)
    assert await read(store) == (ReadStatus.FOUND, BLOCK)
    assert (store.bytes_read, store.outstanding_bytes) == (SIZE, 0)


@pytest.mark.parametrize(
    "sent", [None, BLOCK[:-1] + b"x", BLOCK[:100]], ids=["nothing", "damaged", "a part"]
)
async def test_found_without_the_right_bytes_is_corrupt(cluster: Any, sent: bytes | None) -> None:
    async def answers(liar: Liar, message: Any) -> object:
        if sent is not None:
            await liar.put(message, sent)
        return done(message)

    store, _ = await against(cluster, answers)
    status, _ = await read(store)
    assert status is ReadStatus.CORRUPT
    assert store.counters["read_corrupt"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"statuses": b""},
        {"statuses": b"\0\0"},
        {"statuses": b"\x09"},
        {"checksums": b""},
    ],
)
async def test_an_answer_that_is_none_to_the_read_fails_it(
    cluster: Any, changes: dict[str, Any]
) -> None:
    async def answers(liar: Liar, message: Any) -> object:
        await liar.put(message)
        return done(message, **changes)

    store, _ = await against(cluster, answers)
    assert (await read(store))[0] is ReadStatus.FAILED


async def test_a_refusal_or_another_kind_of_answer_fails_the_call(cluster: Any) -> None:
    async def answers(liar: Liar, message: Any) -> object:
        if isinstance(message, wire.WriteOpen):
            return wire.StoreRefused(message.op, "not today")
        return wire.WriteDone(message.op, b"\0")

    store, _ = await against(cluster, answers)
    assert (await read(store))[0] is ReadStatus.FAILED
    assert await write(store) is WriteStatus.NOT_STORED
    assert (await store.match([KEY])).blocks == 0
    assert (await store.stat()).blocks == 0
    assert store.shards_up() == {"storage-0": True}


async def test_garbage_and_answers_to_nothing_are_dropped(cluster: Any) -> None:
    async def answers(liar: Liar, message: Any) -> object:
        with pytest.raises(TransportError):
            await liar.endpoint.send(liar.client, b"garbage")
        with pytest.raises(TransportError):
            await liar.endpoint.send(liar.client, encode(wire.Ping(message.op + 1000)))
        await liar.endpoint.send(liar.client, encode(done(message, statuses=b"\1")))
        return done(message)

    store, _ = await against(cluster, answers)
    assert (await read(store))[0] is ReadStatus.ABSENT


async def test_a_message_of_a_stranger_is_refused(cluster: Any) -> None:
    node = await cluster.peer("node")
    store = ShardStore(
        node, [Address("storage-0", "", "127.0.0.1", 9)], fingerprint="model", block_bytes=SIZE
    )
    await node.start(store.on_message)
    stranger = await cluster.peer("stranger")

    async def ignore(peer: Address, payload: bytes) -> None: ...

    await stranger.start(ignore)
    with pytest.raises(TransportError):
        await stranger.send(node.address, encode(wire.ReadDone(1, b"\0", bytes(16))))
    await store.close()


async def test_a_call_that_the_shard_has_forgotten_fails_long_before_its_deadline(
    cluster: Any,
) -> None:
    async def silent(liar: Liar, message: Any) -> object:
        return None

    store, liar = await against(cluster, silent)
    async with asyncio.timeout(20):
        assert (await read(store, deadline_s=3600))[0] is ReadStatus.FAILED
        assert await write(store, deadline_s=3600) is WriteStatus.NOT_STORED
    assert any(isinstance(message, wire.Ping) for message in liar.heard)


async def test_a_write_that_fails_is_given_up_at_the_shard_too(cluster: Any) -> None:
    async def answers(liar: Liar, message: Any) -> object:
        if isinstance(message, wire.WriteOpen):
            return wire.WriteReady(message.op, 12345, (-7,), bytes([wire.STORED]))
        return None

    store, liar = await against(cluster, answers)
    assert await write(store) is WriteStatus.NOT_STORED
    async with asyncio.timeout(20):
        await liar.given_up.wait()


@pytest.mark.parametrize("answered", [False, True])
async def test_a_match_that_is_cancelled_leaves_no_lease(cluster: Any, answered: bool) -> None:
    asked: asyncio.Future[wire.Match] = asyncio.get_running_loop().create_future()
    released = asyncio.Event()

    async def answers(liar: Liar, message: Any) -> object:
        match message:
            case wire.Match():
                asked.set_result(message)
            case wire.Release(lease=77):
                released.set()
        return None

    store, liar = await against(cluster, answers)
    matching = asyncio.create_task(store.match([KEY], lease_s=600.0))
    async with asyncio.timeout(20):
        done = wire.MatchDone((await asked).op, bytes([1]), 77)
        if answered:
            # The answer is here, and whoever waits for it is cancelled before it runs again.
            await store.on_message(liar.endpoint.address, encode(done))
        matching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await matching
        if not answered:
            await liar.endpoint.send(liar.client, encode(done))
        await released.wait()


async def test_late_writes_of_a_shard_reach_nobodys_memory(cluster: Any) -> None:
    late: list[wire.Read] = []

    async def answers(liar: Liar, message: Any) -> object:
        if isinstance(message, wire.Read):
            late.append(message)
            return done(message, statuses=bytes([wire.FAILED]))
        return None

    store, liar = await against(cluster, answers)
    status, into = await read(store)
    assert status is ReadStatus.FAILED
    with pytest.raises(TransportError):
        await liar.put(late[0])
    assert into == bytes(SIZE)


async def test_shards_that_are_nowhere_hold_nothing(cluster: Any) -> None:
    closed = await cluster.peer("storage-9")

    async def ignore(peer: Address, payload: bytes) -> None: ...

    await closed.start(ignore)
    address = closed.address
    await closed.close()
    store: ShardStore = await cluster.store(
        SIZE, shards=[Address("storage-9", "", address.host, address.port)]
    )
    assert (await store.match([KEY], lease_s=5.0)).blocks == 0
    assert (await read(store))[0] is ReadStatus.FAILED
    assert await write(store) is WriteStatus.NOT_STORED
    assert store.shards_up() == {"storage-9": False}


async def test_closing_a_store_ends_its_calls(cluster: Any) -> None:
    heard = asyncio.Event()

    async def silent(liar: Liar, message: Any) -> object:
        heard.set()
        return None

    store, _ = await against(cluster, silent)
    reading = asyncio.create_task(read(store))
    await heard.wait()
    await store.close()
    assert (await reading)[0] is ReadStatus.FAILED
    assert (await read(store))[0] is ReadStatus.FAILED


async def test_outstanding_blocks_count_down_as_they_arrive(cluster: Any) -> None:
    await cluster.shard()
    fast: ShardStore = await cluster.store(100_000, name="fast")
    slow: ShardStore = await cluster.store(100_000, name="slow", rate=1_000_000)
    names = [bytes([number]) * 16 for number in range(10)]
    blocks = [memoryview(bytes([number]) * 100_000) for number in range(10)]
    await fast.write(names, blocks, deadline_s=30)
    into = [memoryview(bytearray(100_000)) for _ in names]
    reading = asyncio.create_task(slow.read(names, into, deadline_s=30))
    seen = set()
    while not reading.done():
        seen.add(slow.outstanding_blocks)
        await asyncio.sleep(0.005)
    assert await reading == [ReadStatus.FOUND] * 10
    assert len(seen) > 3
    assert slow.outstanding_blocks == 0
    assert slow.bytes_read == 1_000_000
    assert fast.bytes_written == 1_000_000
