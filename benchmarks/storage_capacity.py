"""How a full shard keeps to its capacity, and how its hits compare with an exact LRU's.

    python -m benchmarks.storage_capacity [--capacity 1GiB] [--write 3GiB] [--block 1.4MiB] [--shards 1,4]

Agents with growing contexts take turns, the popular ones more often: match, read what is there, store the rest, until
three times the capacity was written. Meanwhile another client holds a lease on a chain and reads it again and again.
Watched: bytes of the shards' files after each turn (never above the capacity), the leased chain (never lost), and
hits, beside a model that evicts exactly the block touched longest ago, of those touched together the deepest. Four
shards of a quarter each differ from it, as each keeps an order of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from benchmarks.local import machine
from benchmarks.shards import Running, client, shard

from dualpath.kvstore.api import ReadStatus, WriteStatus
from dualpath.kvstore.disk import DiskOptions
from dualpath.kvstore.shards import ShardStore
from dualpath.kvstore.volume import allocated_bytes
from dualpath.settings.units import parse_bytes
from dualpath.telemetry.logs import configure_logging
from dualpath.wire.store import WRITE_BATCH_BYTES

AGENTS = 60
TURN_BLOCKS = 6
CONTEXT_BLOCKS = 36
LEASED_BLOCKS = 16


@dataclass
class ExactLru:
    """What a single store of so many blocks would hold."""

    capacity: int
    held: set[bytes] = field(default_factory=set)
    _known: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    _now: int = 0

    def match(self, keys: list[bytes]) -> int:
        """Blocks of the longest known prefix; they are read, too."""
        self._touch(keys)
        known = next((n for n, key in enumerate(keys) if key not in self._known), len(keys))
        self._touch(keys[:known])
        return known

    def _touch(self, keys: list[bytes]) -> None:
        self._now += 1
        for depth, key in enumerate(keys):
            if key in self._known:
                self._known[key] = (self._now, -depth)

    def store(self, keys: list[bytes], depth: int) -> None:
        self._now += 1
        new = [(at, key) for at, key in enumerate(keys, depth) if key not in self._known]
        over = len(self._known) + len(new) - self.capacity
        for key in sorted(set(self._known) - self.held, key=self._known.__getitem__)[
            : max(0, over)
        ]:
            del self._known[key]
        self._known.update({key: (self._now, -at) for at, key in new})


class Agents:
    """Contexts that grow turn by turn and begin anew when they are long."""

    def __init__(self) -> None:
        self._source = random.Random(5)
        self._contexts: list[list[bytes]] = [[] for _ in range(AGENTS)]
        self._weights = [1 / (rank + 2) for rank in range(AGENTS)]

    def turn(self) -> list[bytes]:
        """The keys of one agent's next turn: its context, and what is new."""
        (number,) = self._source.choices(range(AGENTS), self._weights)
        context = self._contexts[number]
        if len(context) >= CONTEXT_BLOCKS:
            context.clear()
        context += [self._source.randbytes(16) for _ in range(TURN_BLOCKS)]
        return list(context)


def block(key: bytes, nbytes: int) -> memoryview:
    return memoryview((key * (nbytes // 16 + 1))[:nbytes])


def on_disk(root: Path) -> int:
    """Bytes of all extents."""
    return sum(path.stat().st_size for path in root.glob("*/*-*/0*"))


class Watched:
    """A chain under a lease, read again and again."""

    def __init__(self, store: ShardStore) -> None:
        self.keys = [bytes([number]) * 16 for number in range(LEASED_BLOCKS)]
        self.reads = 0
        self._store = store

    async def run(self, over: asyncio.Event) -> None:
        size = self._store.namespace.block_bytes
        into = [memoryview(bytearray(size)) for _ in self.keys]
        while not over.is_set():
            statuses = await self._store.read(self.keys, into, deadline_s=60)
            if statuses != [ReadStatus.FOUND] * len(self.keys):
                raise RuntimeError(f"leased blocks were lost: {statuses}")
            self.reads += 1


async def run(running: list[Running], root: Path, args: argparse.Namespace) -> None:
    size, capacity, batch = args.block, args.capacity, max(1, WRITE_BATCH_BYTES // args.block)
    model = ExactLru(capacity // allocated_bytes(1, size))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(client(running, size))
        watched = Watched(await stack.enter_async_context(client(running, size, "watcher")))
        await store.write(watched.keys, [block(key, size) for key in watched.keys], deadline_s=60)
        await store.match(watched.keys, lease_s=600)
        model.store(watched.keys, 0)
        model.held = set(watched.keys)
        into = [memoryview(bytearray(size)) for _ in range(CONTEXT_BLOCKS)]
        asked = hits = expected = written = most = turns = refused = 0
        agents, over = Agents(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(watched.run(over))
            while written < args.write:
                keys = agents.turn()
                match = await store.match(keys, lease_s=60)
                found = match.blocks
                statuses = await store.read(keys[:found], into[:found], deadline_s=60)
                if statuses != [ReadStatus.FOUND] * found:
                    raise RuntimeError(f"matched blocks were lost: {statuses}")
                await store.release(match)
                for at in range(found, len(keys), batch):
                    new = keys[at : at + batch]
                    told = await store.write(
                        new, [block(key, size) for key in new], deadline_s=60, depth=at
                    )
                    refused += told.count(WriteStatus.NOT_STORED)
                    written += size * told.count(WriteStatus.STORED)
                known = model.match(keys)
                for at in range(known, len(keys), batch):
                    model.store(keys[at : at + batch], at)
                expected += known
                asked, hits, turns = asked + len(keys), hits + found, turns + 1
                most = max(most, on_disk(root))
            over.set()
    print(
        f"{len(running)} shards: {written / 1e9:.2f} GB written in {turns} turns, {refused} blocks refused;"
        f" at most {most:,} of {capacity:,} bytes on disk ({most / capacity:.2%});"
        f" a leased chain read {watched.reads} times\n"
        f"  hits {hits / asked:.2%} of the blocks asked for; exact LRU {expected / asked:.2%}"
    )
    if most > capacity:
        raise RuntimeError("the capacity was exceeded")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--capacity", type=parse_bytes, default=1 << 30)
    parser.add_argument("--write", type=parse_bytes, default=3 << 30)
    parser.add_argument("--block", type=parse_bytes, default=parse_bytes("1.4MiB"))
    parser.add_argument("--shards", default="1,4")
    parser.add_argument(
        "--dir", type=Path, help="where to put the blocks; default: a temporary one"
    )
    args = parser.parse_args()
    configure_logging("benchmark", fmt="console", level="error")
    print(machine())
    for count in map(int, args.shards.split(",")):
        with (
            tempfile.TemporaryDirectory(dir=args.dir, prefix="dualpath-capacity-") as directory,
            ExitStack() as stack,
        ):
            root, options = Path(directory), DiskOptions(capacity_bytes=args.capacity // count)
            running = [
                stack.enter_context(shard(f"storage-{n}", root / f"storage-{n}", options))
                for n in range(count)
            ]
            uvloop.run(run(running, root, args))


if __name__ == "__main__":
    main()
