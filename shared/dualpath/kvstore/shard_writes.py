"""Writing blocks to one shard: it gives room, the blocks go there one-sided, the shard stores them."""

from __future__ import annotations

import asyncio

from dualpath.blocks.keys import pack_keys
from dualpath.kvstore.api import WriteStatus
from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.shard import ShardCall, ShardLink, ShardUnavailable, note, statuses_of
from dualpath.tasks import Threads
from dualpath.telemetry.tracing import current
from dualpath.transport.api import Endpoint, TransportError
from dualpath.wire import store as wire


class ShardWrites:
    """Writes of one client."""

    def __init__(self, endpoint: Endpoint, namespace: wire.Namespace, threads: Threads) -> None:
        self._endpoint = endpoint
        self._namespace = namespace
        self._threads = threads

    async def write(
        self,
        link: ShardLink,
        keys: list[bytes],
        blocks: list[memoryview],
        depths: list[int],
        ends: float,
    ) -> list[WriteStatus]:
        """Write a batch of distinct keys, of WRITE_BATCH_BYTES at most or one block, until the loop's time `ends`.
        See BlockStore.write."""
        call = link.call()
        statuses: list[WriteStatus] | None = None
        try:
            async with asyncio.timeout_at(ends):
                statuses = await self._put(call, keys, blocks, depths, ends)
        except (ShardUnavailable, TimeoutError) as error:
            note(link, "write", error)
        finally:
            call.close()
            if statuses is None:
                link.tell(wire.CancelWrite(call.op))
        return statuses or [WriteStatus.NOT_STORED] * len(keys)

    async def _put(
        self,
        call: ShardCall,
        keys: list[bytes],
        blocks: list[memoryview],
        depths: list[int],
        ends: float,
    ) -> list[WriteStatus]:
        def checksums() -> bytes:
            return b"".join(map(block_checksum, keys, blocks))

        nbytes = len(blocks) * self._namespace.block_bytes
        question = wire.WriteOpen(
            call.op,
            self._namespace,
            pack_keys(keys),
            await self._threads.run_or_inline(checksums, nbytes),
            max(ends - asyncio.get_running_loop().time(), 0.001),
            tuple(depths),
            trace=current(),
        )
        ready = await call.ask(question, wire.WriteReady)
        statuses = statuses_of(WriteStatus, ready.statuses, keys)
        wanted = [i for i, status in enumerate(statuses) if status is WriteStatus.STORED]
        if not wanted:
            return statuses
        if len(ready.offsets) != len(keys) or any(ready.offsets[i] < 0 for i in wanted):
            raise ShardUnavailable("it gave no room for what it wants")
        await self._push(call, ready, {i: blocks[i] for i in wanted})
        done = await call.ask(wire.WriteCommit(call.op), wire.WriteDone)
        return statuses_of(WriteStatus, done.statuses, keys)

    async def _push(
        self, call: ShardCall, ready: wire.WriteReady, wanted: dict[int, memoryview]
    ) -> None:
        lost: list[TransportError] = []

        async def push(index: int, block: memoryview) -> None:
            # A region key means something only to the life of the shard that gave it: `call.peer`.
            try:
                await self._endpoint.write(
                    call.peer, ready.region_key, ready.offsets[index], [block]
                )
            except TransportError as error:
                lost.append(error)

        async with asyncio.TaskGroup() as group:
            for index, block in wanted.items():
                group.create_task(push(index, block))
        if lost:
            raise ShardUnavailable(str(lost[0]))
