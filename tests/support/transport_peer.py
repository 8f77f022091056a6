"""`python tests/support/transport_peer.py NBYTES TRANSPORT DEADLINE [RATE]`: an endpoint in a process of its own.

DEADLINE is its links', in seconds, RATE its NIC's, in bytes per second. Prints a line of JSON: its address, and the
key of a region of NBYTES.
A message `sum` is answered with a message that holds the SHA-256 of the region; `push KEY` with a write of the whole
region to the sender's KEY. Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys

import uvloop
from tests.support.transport import SECRET, TRANSPORTS, Bytes, hurry

from dualpath.lanes import PacedNic
from dualpath.wire.types import Address


async def main(
    nbytes: int, transport: str, link_deadline_s: float, rate: float | None = None
) -> None:
    region = Bytes(nbytes)
    region.memory[:] = b"\xff" * nbytes
    answers: set[asyncio.Task[None]] = set()
    endpoint = TRANSPORTS[transport](
        "peer", host="127.0.0.1", nic=PacedNic("peer", rate), secret=SECRET
    )

    async def answer(peer: Address, message: bytes) -> None:
        verb, _, argument = message.partition(b" ")
        if verb == b"sum":
            work = endpoint.send(peer, hashlib.sha256(region.memory).digest())
        else:
            work = endpoint.write(peer, int(argument), 0, [region.memory], imm=len(region.imms))
        task = asyncio.ensure_future(work)
        answers.add(task)
        task.add_done_callback(answers.discard)

    await endpoint.start(answer)
    hurry(endpoint, link_deadline_s)
    address = endpoint.address
    where = (address.endpoint_id, address.incarnation, address.host, address.port)
    print(json.dumps([*where, endpoint.register(region)]), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.gather(*answers, return_exceptions=True)
    await endpoint.close()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:])))
