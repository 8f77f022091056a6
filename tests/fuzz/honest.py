"""A peer that does everything right, and checks that the others do not matter to it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections import Counter

from tests.fuzz.target import HONEST_BYTES
from tests.support.transport import SECRET

from dualpath.lanes import Lane, PacedNic
from dualpath.transport.tcp import TcpEndpoint
from dualpath.transport.tls import Tls
from dualpath.wire.types import Address

WITHIN_S = 30.0
"""Of any one operation; longer is a hang."""


class Honest:
    """Writes to the target's region and asks what is there. Raises AssertionError, TimeoutError."""

    def __init__(
        self,
        target: Address,
        key: int,
        tls: Tls | None,
        draw: random.Random,
        counts: Counter[str],
    ) -> None:
        self._target = target
        self._key = key
        self._draw = draw
        self._counts = counts
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._turn = asyncio.Lock()
        self._endpoint = TcpEndpoint(
            "honest",
            host="127.0.0.1",
            nic=PacedNic("honest"),
            secret=SECRET,
            transfer_deadline_s=WITHIN_S,
            tls=tls,
        )

    async def start(self) -> None:
        await self._endpoint.start(self._take)
        for lane in Lane:
            await self._endpoint.send(self._target, b"hello", lane=lane)

    async def close(self) -> None:
        await self._endpoint.close()

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            await self._round()

    async def count(self) -> dict[str, int]:
        """What the target holds."""
        held: dict[str, int] = json.loads(await self._ask(b"count"))
        return held

    async def _round(self) -> None:
        data = memoryview(self._draw.randbytes(HONEST_BYTES))
        async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
            for lane, part in ((Lane.HIGH, slice(0, 300_000)), (Lane.LOW, slice(300_000, None))):
                group.create_task(
                    self._endpoint.write(
                        self._target, self._key, part.start, [data[part]], lane=lane
                    )
                )
        assert await self._ask(b"sum") == hashlib.sha256(data).digest(), "honest bytes were damaged"
        self._counts["honest rounds verified"] += 1

    async def _ask(self, question: bytes) -> bytes:
        async with self._turn, asyncio.timeout(WITHIN_S):
            await self._endpoint.send(self._target, question)
            return await self._answers.get()

    async def _take(self, peer: Address, message: bytes) -> None:
        assert peer == self._target, f"{peer} wrote to an honest peer"
        self._answers.put_nowait(message)
