"""`python -m tests.fuzz.target [TLS FILES]`: an endpoint in a process of its own, to be fuzzed; logs JSON.

Prints a line of JSON: its address, the key of a region that only honest peers are told, and keys for the others:
open, scattered, tiny and revoked ones. Messages: `sum` is answered with the SHA-256 of the honest region, `count`
with what the process holds, `push` with a long write to a key that the sender never issued. Ends with its standard
input.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop
from tests.support.transport import SECRET, Bytes, Scattered

from dualpath.lanes import PacedNic
from dualpath.telemetry.logs import configure_logging
from dualpath.transport.api import TransportError
from dualpath.transport.tcp import TcpEndpoint
from dualpath.transport.tls import Tls
from dualpath.wire.types import Address

DEADLINE_S = 5.0
HONEST_BYTES = 1_000_000
MAX_PUSHES = 32


async def main(tls: Tls | None) -> None:
    endpoint = TcpEndpoint(
        "target",
        host="127.0.0.1",
        nic=PacedNic("target"),
        secret=SECRET,
        transfer_deadline_s=DEADLINE_S,
        tls=tls,
    )
    honest = Bytes(HONEST_BYTES)
    answers: set[asyncio.Task[None]] = set()

    async def answer(peer: Address, message: bytes) -> None:
        # What the target sends by itself waits for a peer that may say nothing: not here.
        if message == b"sum":
            work = endpoint.send(peer, hashlib.sha256(honest.memory).digest())
        elif message == b"count":
            work = endpoint.send(peer, json.dumps(held(endpoint, len(answers))).encode())
        elif message == b"push" and len(answers) < MAX_PUSHES:
            work = endpoint.write(peer, 7, 0, [honest.memory] * 16)
        else:
            return
        task = asyncio.ensure_future(settle(work))
        answers.add(task)
        task.add_done_callback(answers.discard)

    await endpoint.start(answer)
    regions = [Bytes(2500), Scattered(5000, 100), Bytes(10), Bytes(100)]
    keys = [endpoint.register(region) for region in regions]
    await endpoint.revoke(keys[3])
    where = endpoint.address
    said = [where.endpoint_id, where.incarnation, where.host, where.port]
    print(json.dumps([said, endpoint.register(honest), keys]), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in answers:
        task.cancel()
    await endpoint.close()


async def settle(work: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(TransportError):
        await work


def held(endpoint: TcpEndpoint, answers: int) -> dict[str, int]:
    """What must not grow."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()) - answers,
        "links": len(endpoint._routes.links),
        "unproven": len(endpoint._accepts),
    }


if __name__ == "__main__":
    configure_logging("target", fmt="json", level="info")
    files = [Path(name) for name in sys.argv[1:]]
    uvloop.run(main(Tls(*files) if files else None))
