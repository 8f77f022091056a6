"""`python tests/support/collectives_peer.py RANK SIZE DEADLINE`: a member of a group in a process of its own.

DEADLINE, in seconds, is that of collectives and links.
Prints its seat as a line of JSON, and reads everybody's from standard input. Then each line is an order:
`check ROUNDS LONGEST` runs and checks collectives, `wait` begins one that the others may not join; the answer
is a line of JSON, `null` or the sentence of the CollectiveError. Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

import uvloop
from tests.support.collectives import check_collectives
from tests.support.transport import SECRET, hurry, ignore

from dualpath.lanes import PacedNic
from dualpath.telemetry.logs import configure_logging
from dualpath.transport.collectives import CollectiveError, Group, Seat
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import Address


def seats(lines: Sequence[Any]) -> list[Seat]:
    return [Seat(Address(*where), key) for *where, key in lines]


async def obey(group: Group, order: str) -> str | None:
    verb, *numbers = order.split()
    try:
        if verb == "check":
            await check_collectives(group, *map(int, numbers))
        else:
            await group.all_gather(b"")
    except CollectiveError as error:
        return str(error)
    return None


async def main(rank: int, size: int, deadline_s: float) -> None:
    name = f"member-{rank}"
    # Standard output is for answers.
    configure_logging(name, fmt="console", level="error")
    endpoint = TcpEndpoint(name, host="127.0.0.1", nic=PacedNic(name), secret=SECRET)
    await endpoint.start(ignore)
    hurry(endpoint, deadline_s)
    group = Group(endpoint, rank, size, deadline_s=deadline_s, place_bytes=10_000)
    address = group.seat.address
    where = (address.endpoint_id, address.incarnation, address.host, address.port)
    print(json.dumps([*where, group.seat.key]), flush=True)
    read = asyncio.to_thread
    group.join(seats(json.loads(await read(sys.stdin.readline))))
    while order := await read(sys.stdin.readline):
        print(json.dumps(await obey(group, order)), flush=True)
    await group.close()
    await endpoint.close()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
