"""Reading blocks from one shard: a region for them, the shard's one-sided writes into it, verification."""

from __future__ import annotations

import asyncio
from functools import partial

from dualpath.blocks.keys import pack_keys
from dualpath.kvstore.api import ReadStatus
from dualpath.kvstore.checksum import CHECKSUM_BYTES, block_checksum
from dualpath.kvstore.region import BlocksRegion
from dualpath.kvstore.shard import (
    TELL_TIMEOUT_S,
    ShardCall,
    ShardLink,
    ShardUnavailable,
    note,
    statuses_of,
)
from dualpath.tasks import Threads, finish
from dualpath.telemetry.logs import get_logger
from dualpath.telemetry.tracing import current
from dualpath.transport.api import Endpoint
from dualpath.wire import store as wire

log = get_logger(__name__)

DIGEST_INLINE_BYTES = 4 << 20
"""A block of so many bytes that just came is digested in a tenth of a millisecond or two: what it costs
to have another thread do it."""


class ShardReads:
    """Reads of one client, and how much of them is still to come."""

    def __init__(
        self, endpoint: Endpoint, namespace: wire.Namespace, threads: Threads, run_bytes: int
    ) -> None:
        """Blocks are to come in writes of up to `run_bytes`, or one by one."""
        self.outstanding_blocks = 0
        self._endpoint = endpoint
        self._namespace = namespace
        self._threads = threads
        self._run_bytes = run_bytes

    async def read(
        self, link: ShardLink, keys: list[bytes], into: list[memoryview], ends: float
    ) -> list[ReadStatus]:
        """Read what one message can name, until the loop's time `ends`. See BlockStore.read."""
        digests = [b""] * len(keys)
        late: dict[int, asyncio.Future[bytes]] = {}

        def whole(index: int) -> None:
            """Digest a block while it is in this processor's cache, and others are on their way."""
            if self._namespace.block_bytes <= DIGEST_INLINE_BYTES:
                digests[index] = block_checksum(keys[index], into[index])
            else:
                digest = partial(block_checksum, keys[index], into[index])
                late[index] = self._threads.start(digest)

        def landed(indices: list[int]) -> None:
            self.outstanding_blocks -= len(indices)
            link.heard()

        region = BlocksRegion(into, landed, whole)
        region_key = self._endpoint.register(region)
        self.outstanding_blocks += len(keys)
        call = link.call()
        done: wire.ReadDone | None = None
        try:
            async with asyncio.timeout_at(ends):
                done = await self._ask(call, keys, region_key, ends)
        except (ShardUnavailable, TimeoutError) as error:
            note(link, "read", error)
        finally:
            call.close()
            if done is None:
                link.tell(wire.CancelRead(call.op))
            try:
                # After this nobody writes: what was digested is what the caller gets.
                await finish(self._endpoint.revoke(region_key))
            finally:
                self.outstanding_blocks -= region.awaited
                await finish(asyncio.gather(*late.values()))
        if done is None:
            return [ReadStatus.FAILED] * len(keys)
        for index, digest in late.items():
            digests[index] = digest.result()
        for index in region.rewritten:
            digests[index] = b""
        statuses = self._verified(link, keys, digests, done)
        await self._suspect(
            link,
            [
                key
                for key, told, status in zip(keys, done.statuses, statuses, strict=True)
                if told == wire.FOUND and status is ReadStatus.CORRUPT
            ],
        )
        return statuses

    async def _ask(
        self, call: ShardCall, keys: list[bytes], region_key: int, ends: float
    ) -> wire.ReadDone:
        size = self._namespace.block_bytes
        question = wire.Read(
            call.op,
            self._namespace,
            pack_keys(keys),
            region_key,
            tuple(range(0, size * len(keys), size)),
            max(ends - asyncio.get_running_loop().time(), 0.001),
            trace=current(),
            run_bytes=self._run_bytes,
        )
        done = await call.ask(question, wire.ReadDone)
        statuses_of(ReadStatus, done.statuses, keys)
        if len(done.checksums) != CHECKSUM_BYTES * len(keys):
            raise ShardUnavailable("it answered with checksums for another number of blocks")
        return done

    def _verified(
        self, link: ShardLink, keys: list[bytes], digests: list[bytes], done: wire.ReadDone
    ) -> list[ReadStatus]:
        """The shard's word for each block, but CORRUPT where what has landed is not what it says it stored."""
        statuses = statuses_of(ReadStatus, done.statuses, keys)
        if b"".join(digests) == done.checksums:
            return statuses  # All of them landed, and are what was stored.
        for index, status in enumerate(statuses):
            at = index * CHECKSUM_BYTES
            stated = done.checksums[at : at + CHECKSUM_BYTES]
            if status is ReadStatus.FOUND and digests[index] != stated:
                statuses[index] = ReadStatus.CORRUPT
                log.warning(
                    "block arrived damaged", shard=link.address.endpoint_id, key=keys[index].hex()
                )
        return statuses

    async def _suspect(self, link: ShardLink, keys: list[bytes]) -> None:
        """Tell the shard which blocks were damaged: only it can tell its disk from the way."""
        if keys:
            try:
                async with asyncio.timeout(TELL_TIMEOUT_S):
                    await link.send(wire.Suspect(self._namespace, pack_keys(keys)))
            except (ShardUnavailable, TimeoutError) as error:
                note(link, "suspect", error)
