"""Reading blocks from one shard: a region for them, the shard's one-sided writes into it, verification."""

from __future__ import annotations

import asyncio

from dualpath.blocks.keys import pack_keys
from dualpath.kvstore.api import ReadStatus
from dualpath.kvstore.checksum import CHECKSUM_BYTES, block_checksum
from dualpath.kvstore.region import BlocksRegion
from dualpath.kvstore.shard import ShardCall, ShardLink, ShardUnavailable, note, statuses_of
from dualpath.kvstore.tasks import Threads, finish
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import Endpoint
from dualpath.wire import store as wire

log = get_logger(__name__)


class ShardReads:
    """Reads of one client, and how much of them is still to come."""

    def __init__(self, endpoint: Endpoint, namespace: wire.Namespace, threads: Threads) -> None:
        self.outstanding_blocks = 0
        self._endpoint = endpoint
        self._namespace = namespace
        self._threads = threads

    async def read(
        self, link: ShardLink, keys: list[bytes], into: list[memoryview], ends: float
    ) -> list[ReadStatus]:
        """Read what one message can name, until the loop's time `ends`. See BlockStore.read."""
        region = BlocksRegion(into, self._arrived)
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
                # After this nobody writes: what is verified below is what the caller gets.
                await finish(self._endpoint.revoke(region_key))
            finally:
                self.outstanding_blocks -= region.awaited
        if done is None:
            return [ReadStatus.FAILED] * len(keys)
        return await self._verified(link, keys, into, done)

    def _arrived(self) -> None:
        self.outstanding_blocks -= 1

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
        )
        done = await call.ask(question, wire.ReadDone)
        statuses_of(ReadStatus, done.statuses, keys)
        if len(done.checksums) != CHECKSUM_BYTES * len(keys):
            raise ShardUnavailable("it answered with checksums for another number of blocks")
        return done

    async def _verified(
        self, link: ShardLink, keys: list[bytes], into: list[memoryview], done: wire.ReadDone
    ) -> list[ReadStatus]:
        statuses = statuses_of(ReadStatus, done.statuses, keys)
        found = [index for index, status in enumerate(statuses) if status is ReadStatus.FOUND]

        def damaged() -> list[int]:
            return [
                index
                for index in found
                if block_checksum(keys[index], into[index])
                != done.checksums[index * CHECKSUM_BYTES : (index + 1) * CHECKSUM_BYTES]
            ]

        nbytes = len(found) * self._namespace.block_bytes
        for index in await self._threads.run_or_inline(damaged, nbytes):
            statuses[index] = ReadStatus.CORRUPT
            log.warning(
                "block arrived damaged", shard=link.address.endpoint_id, key=keys[index].hex()
            )
        return statuses
